// The version that --version prints and files record.
#pragma once

namespace cortado {

inline constexpr const char* kVersion = "0.2.0";  // must equal project(VERSION) of CMakeLists.txt
extern const char* const kCommit;  // commit of the source; "+" appended: with local changes; empty: built outside git

}  // namespace cortado
