// The version that --version prints and that files carry. CMakeLists.txt's project(VERSION) says the same.
#pragma once

namespace cortado {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace cortado
