// What --version prints and files carry.
#pragma once

namespace cortado {

inline constexpr const char* kVersion = "0.1.0";  // CMakeLists.txt's project(VERSION) says the same
extern const char* const kCommit;  // of the source; "+" behind it: with changes; empty: it was built outside git

}  // namespace cortado
