#include "cortado/tasks/listops/expression.h"

#include <algorithm>
#include <array>

namespace cortado {
namespace {

constexpr std::array<std::string_view, kListopsTokens> kWords = {"0", "1", "2",    "3",    "4",    "5",   "6", "7",
                                                                 "8", "9", "[MIN", "[MAX", "[MED", "[SM", "X"};

int64_t apply(int64_t operation, std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  switch (operation) {
    case kMin:
      return values.front();
    case kMax:
      return values.back();
    case kMed: {  // for an even number of values, the mean of the middle two, rounded down
      const size_t n = values.size();
      return (values[(n - 1) / 2] + values[n / 2]) / 2;
    }
    default: {
      int64_t sum = 0;
      for (const int64_t value : values) sum += value;
      return sum % 10;
    }
  }
}

}  // namespace

std::optional<int64_t> listops_value(const std::vector<int64_t>& tokens) {
  struct Open {
    int64_t operation;
    std::vector<int64_t> values;
  };
  std::vector<Open> open{{kClose, {}}};  // its only value is that of the whole expression
  for (const int64_t token : tokens) {
    if (open.size() == 1 && !open[0].values.empty()) return {};
    if (token < kMin) {
      open.back().values.push_back(token);
    } else if (token < kClose) {
      open.push_back({token, {}});
    } else {
      if (open.size() == 1 || open.back().values.empty()) return {};
      const int64_t value = apply(open.back().operation, std::move(open.back().values));
      open.pop_back();
      open.back().values.push_back(value);
    }
  }
  if (open.size() != 1 || open[0].values.size() != 1) return {};
  return open[0].values[0];
}

std::string listops_text(const std::vector<int64_t>& tokens) {
  std::string text;
  for (const int64_t token : tokens) text.append(text.empty() ? "" : " ").append(kWords[size_t(token)]);
  return text;
}

// Each argument of an operator, and its closing bracket, is followed by a parenthesis that closes; it opens before all
// that the operator has taken so far.
std::string listops_source(const std::vector<int64_t>& tokens) {
  std::string text;
  std::vector<size_t> open;  // offsets in the text at which the open operators begin
  const auto taken = [&] {
    if (open.empty()) return;
    text.insert(open.back(), "( ");
    text += " )";
  };
  for (const int64_t token : tokens) {
    if (!text.empty()) text += ' ';
    if (token >= kMin && token < kClose) open.push_back(text.size());
    text += token == kClose ? "]" : kWords[size_t(token)];
    if (token >= kMin && token < kClose) continue;
    taken();
    if (token != kClose) continue;
    open.pop_back();
    taken();
  }
  return text;
}

std::optional<std::vector<int64_t>> listops_tokens(std::string_view text) {
  std::vector<int64_t> tokens;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word.empty() || word == "(" || word == ")") continue;
    const auto found = std::find(kWords.begin(), kWords.end(), word == "]" ? "X" : word);
    if (found == kWords.end()) return {};
    tokens.push_back(found - kWords.begin());
  }
  return tokens;
}

}  // namespace cortado
