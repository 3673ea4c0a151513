// Nested lists of digits with MIN, MAX, MED and SM, and their values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// Tokens: the digits 0 .. 9, the operators with their opening bracket, and the closing bracket.
enum ListopsToken : int64_t { kMin = 10, kMax, kMed, kSum, kClose };
inline constexpr int64_t kListopsTokens = 15;

// The value (a digit) of an expression; nullopt if the tokens are not exactly one expression.
std::optional<int64_t> listops_value(const std::vector<int64_t>& tokens);

// listops_text writes tokens as models read them: "[MAX 1 2 X". listops_source writes them as in the public files,
// where each operator takes its arguments one by one between parentheses: "( ( ( [MAX 1 ) 2 ) ] )".
std::string listops_text(const std::vector<int64_t>& tokens);
std::string listops_source(const std::vector<int64_t>& tokens);
// Parses either format; nullopt for an unknown word.
std::optional<std::vector<int64_t>> listops_tokens(std::string_view text);

}  // namespace cortado
