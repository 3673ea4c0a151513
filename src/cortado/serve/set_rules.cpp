#include "cortado/serve/set_rules.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "cortado/base/error.h"

namespace cortado {

namespace {

// Up to this many values may come in any order; six values have 64 subsets.
constexpr size_t kAnyOrder = 6;

// Returns JSON text as a literal of the grammar.
std::string literal(const std::string& json) {
  std::string text = "\"";
  for (const char c : json) text += c == '"' || c == '\\' ? concat("\\", c) : std::string(1, c);
  return text + "\"";
}

}  // namespace

// Makes one rule for each set of values taken so far (for many values: for each position in their order) and each
// number of items.
std::string rules_of_set(const std::string& name, const Json& values, std::pair<int64_t, int64_t> lengths) {
  using Taken = std::array<size_t, 3>;
  const size_t count = values.size(), least = static_cast<size_t>(lengths.first);
  const size_t most = std::min(count, static_cast<size_t>(lengths.second));
  fail_input_if(least > most, "a list of ", least, " different items cannot be made of ", count);
  const auto rule = [&](const Taken& it) { return concat(name, "_", it[0], "_", it[1], "_", it[2]); };
  std::string rules = concat(name, " ::= \"[\" ", rule({0, 0, 0}), "\n");
  std::set<Taken> known = {{0, 0, 0}};
  std::vector<Taken> open = {{0, 0, 0}};
  const bool any_order = count <= kAnyOrder;
  while (!open.empty()) {
    const auto [taken, past, number] = open.back();
    open.pop_back();
    rules += rule({taken, past, number}) + " ::=";
    const char* between = " ";
    for (size_t i = past; i < count && number < most; ++i) {
      // Too few values would remain after this one.
      if (!any_order && number + (count - i) < least) break;
      if (any_order && (taken >> i & 1) != 0) continue;
      const Taken next = {any_order ? taken | size_t{1} << i : 0, any_order ? 0 : i + 1, number + 1};
      rules += concat(between, "(", literal((number > 0 ? ", " : "") + values[i].dump()), " ", rule(next), ")");
      between = " | ";
      if (known.insert(next).second) open.push_back(next);
    }
    if (number >= least) rules += concat(between, "\"]\"");
    rules += "\n";
  }
  return rules;
}

}  // namespace cortado
