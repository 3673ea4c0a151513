// The settings of rotary positions that are stretched to a longer context.
#include <cmath>

#include "cortado/base/error.h"
#include "cortado/nn/rotary/rotary.h"

namespace cortado {
namespace {

using Type = RotaryScaling::Type;

constexpr double kMost = 1e9;
constexpr int64_t kLongest = int64_t{1} << 40;

void read_llama3(JsonReader& reader, RotaryScaling& scaling) {
  scaling.low = reader.number("low_freq_factor", 0.0, kMost, scaling.low);
  scaling.high = reader.number("high_freq_factor", 0.0, kMost, scaling.high);
  scaling.original_context = reader.integer("original_context", 1, kLongest, scaling.original_context);
}

void read_yarn(JsonReader& reader, RotaryScaling& scaling) {
  scaling.original_context = reader.integer("original_context", 1, kLongest);
  scaling.beta_fast = reader.number("beta_fast", 1e-9, kMost, scaling.beta_fast);
  scaling.beta_slow = reader.number("beta_slow", 1e-9, kMost, scaling.beta_slow);
  scaling.truncate = reader.boolean("truncate", true);
  const auto said = reader.optional_number("attention_factor", 1e-9, kMost);
  scaling.attention_factor = said.value_or(yarn_attention_factor(scaling.factor));
}

void read_longrope(JsonReader& reader, RotaryScaling& scaling) {
  scaling.short_factors = read_factors(reader, "short_factors");
  scaling.long_factors = read_factors(reader, "long_factors");
  scaling.original_context = reader.integer("original_context", 2, kLongest);
  scaling.context = reader.integer("context", 1, kLongest);
  const double factor = static_cast<double>(scaling.context) / static_cast<double>(scaling.original_context);
  const auto said = reader.optional_number("attention_factor", 1e-9, kMost);
  scaling.attention_factor = said.value_or(longrope_attention_factor(factor, scaling.original_context));
}

}  // namespace

RotaryScaling RotaryScaling::from_json(const Json& json, const std::string& place) {
  static const std::vector<std::pair<std::string, Type>> kTypes = {{"linear", Type::kLinear},
                                                                   {"llama3", Type::kLlama3},
                                                                   {"yarn", Type::kYarn},
                                                                   {"longrope", Type::kLongrope},
                                                                   {"factors", Type::kFactors}};
  JsonReader reader(json, place);
  RotaryScaling read;
  const std::string type = reader.choice("type", {"linear", "llama3", "yarn", "longrope", "factors"});
  for (const auto& [name, value] : kTypes) {
    if (name == type) read.type = value;
  }
  if (read.type == Type::kFactors) read.factors = read_factors(reader, "factors");
  if (read.type == Type::kLongrope) read_longrope(reader, read);
  if (read.listed() == 0) read.factor = reader.number("factor", 1.0 / kMost, kMost);
  if (read.type == Type::kLlama3) read_llama3(reader, read);
  if (read.type == Type::kYarn) read_yarn(reader, read);
  read.check(reader);
  reader.finish();
  return read;
}

void RotaryScaling::check(const JsonReader& reader) const {
  reader.fail_if(type == Type::kLlama3 && high <= low, "high_freq_factor (", high, ") must be above low_freq_factor (",
                 low, ")");
  reader.fail_if(type == Type::kYarn && factor < 1, "yarn's factor must be 1 or more, got ", factor);
  reader.fail_if(type == Type::kYarn && beta_fast < beta_slow, "beta_fast (", beta_fast,
                 ") must not be below beta_slow (", beta_slow, ")");
  reader.fail_if(short_factors.size() != long_factors.size(), "longrope has ", short_factors.size(), " short and ",
                 long_factors.size(), " long factors; it needs one of each per frequency");
}

int64_t RotaryScaling::listed() const {
  return static_cast<int64_t>(type == Type::kFactors ? factors.size() : long_factors.size());
}

Json RotaryScaling::to_json() const {
  if (type == Type::kNone) return Json::object();
  if (type == Type::kLinear) return {{"type", "linear"}, {"factor", factor}};
  if (type == Type::kFactors) return {{"type", "factors"}, {"factors", factors}};
  if (type == Type::kLlama3) {
    return {{"type", "llama3"},
            {"factor", factor},
            {"low_freq_factor", low},
            {"high_freq_factor", high},
            {"original_context", original_context}};
  }
  if (type == Type::kYarn) {
    return {{"type", "yarn"},
            {"factor", factor},
            {"beta_fast", beta_fast},
            {"beta_slow", beta_slow},
            {"truncate", truncate},
            {"attention_factor", attention_factor},
            {"original_context", original_context}};
  }
  return {{"type", "longrope"},           {"short_factors", short_factors},
          {"long_factors", long_factors}, {"original_context", original_context},
          {"context", context},           {"attention_factor", attention_factor}};
}

double yarn_attention_factor(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

double longrope_attention_factor(double factor, int64_t original_context) {
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_context)));
}

std::vector<double> read_factors(JsonReader& reader, const std::string& key) {
  const Json list = reader.any(key);
  if (!list.is_array() || list.empty()) reader.fail("key \"", key, "\": expected a list of numbers");
  std::vector<double> read;
  for (const Json& number : list) {
    const double value = number.is_number() ? number.get<double>() : 0.0;
    if (!(value > 0 && value <= kMost)) reader.fail("key \"", key, "\": expected positive numbers");
    read.push_back(value);
  }
  return read;
}

}  // namespace cortado
