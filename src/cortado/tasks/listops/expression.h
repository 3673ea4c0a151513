// Nested lists of digits under MIN, MAX, MED and SM, and their value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// Tokens: the digits 0 .. 9 as themselves, then the operators with their opening bracket, and the bracket that closes.
enum ListopsToken : int64_t { kMin = 10, kMax, kMed, kSum, kClose };
inline constexpr int64_t kListopsTokens = 15;

// The digit that a whole expression stands for; none: not an expression, or more than one.
std::optional<int64_t> listops_value(const std::vector<int64_t>& tokens);

// "[MAX 1 2 X": as models read it. In the public files each operator takes its arguments one by one between
// parentheses: "( ( ( [MAX 1 ) 2 ) ] )".
std::string listops_text(const std::vector<int64_t>& tokens);
std::string listops_source(const std::vector<int64_t>& tokens);
// Either of them; none: another word.
std::optional<std::vector<int64_t>> listops_tokens(std::string_view text);

}  // namespace cortado
