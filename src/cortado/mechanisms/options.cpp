#include "cortado/mechanisms/options.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
namespace {

Json read_option(JsonReader& reader, const MechanismOption& option) {
  for (const auto& [earlier, word] : option.earlier) reader.renamed_word(option.name, earlier, word);
  if (!option.words.empty()) return reader.choice(option.name, option.words);
  if (!option.whole) return reader.number(option.name, option.low, option.high);
  return reader.integer(option.name, static_cast<int64_t>(option.low), static_cast<int64_t>(option.high));
}

}  // namespace

Json read_options(JsonReader& reader, const std::vector<OptionOwner>& owners) {
  Json values = Json::object();
  for (const OptionOwner& owner : owners) {
    for (const MechanismOption& option : owner.options) {
      const bool given = !reader.any(option.name).is_null();  // any() marks the key as known
      if (given) values[option.name] = read_option(reader, option);
    }
  }
  return values;
}

void refuse_others(const Json& values, const std::vector<MechanismOption>& options, const std::string& what) {
  for (const auto& [name, value] : values.items()) {
    const bool known =
        std::any_of(options.begin(), options.end(), [&](const MechanismOption& option) { return option.name == name; });
    fail_input_if(!known, what, " has no ", name);
  }
}

}  // namespace cortado
