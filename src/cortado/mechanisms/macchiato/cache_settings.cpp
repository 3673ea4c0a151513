#include "cortado/mechanisms/macchiato/cache_settings.h"

#include <algorithm>

namespace cortado {
namespace {

// Defaults for the cache of a converted model (docs/one-memory.md).
constexpr double kFading = 0.25;
constexpr int64_t kSpan = 4;

// λ per key head, from a number for all heads or a list. Empty if no head has a cache.
std::vector<int64_t> read_cache(JsonReader& settings, int64_t kv_heads) {
  constexpr int64_t kMost = 1 << 24;
  std::vector<int64_t> most;
  if (const Json list = settings.any("cache"); list.is_array()) {
    for (const Json& each : list) {
      const bool good = each.is_number_integer() && each.get<int64_t>() >= 0 && each.get<int64_t>() <= kMost;
      settings.fail_if(!good, "key \"cache\": expected integers from 0 to ", kMost, ", got ", each.dump());
      most.push_back(each.get<int64_t>());
    }
    settings.fail_if(static_cast<int64_t>(most.size()) != kv_heads, "key \"cache\" has ", most.size(), " entries for ",
                     kv_heads, " key heads");
  } else {
    most.assign(kv_heads, settings.optional_integer("cache", 0, kMost).value_or(0));
  }
  return std::all_of(most.begin(), most.end(), [](int64_t each) { return each == 0; }) ? std::vector<int64_t>{} : most;
}

}  // namespace

CacheRule read_cache_rule(JsonReader& settings, const AttentionSettings& window, int64_t latents) {
  CacheRule rule{.window = window.window.value_or(0), .most = read_cache(settings, window.kv_heads)};
  rule.learned = settings.choice("score", {"surprise", "learned"}, "surprise") == "learned";
  rule.chunk = settings.integer("chunk", 1, 1 << 24, rule.chunk);
  rule.distance = settings.integer("distance", 0, int64_t{1} << 40, rule.distance);
  rule.fading = settings.number("fading", 0, 1, rule.fading);
  rule.span = settings.integer("span", 0, 1 << 20, rule.span);
  rule.rotary = window.rotary;
  rule.scores.scale = window.scale;
  rule.scores.softcap = window.softcap;
  const CacheRule usual;
  const bool chosen = rule.chunk != usual.chunk || rule.distance != usual.distance || rule.fading != usual.fading ||
                      rule.span != usual.span;
  settings.fail_if(chosen && !settings.has("cache"),
                   "\"chunk\", \"distance\", \"fading\" and \"span\" are of a cache: give \"cache\", too");
  if (rule.empty()) return rule;
  settings.fail_if(!window.window || latents == 0, "\"cache\" needs a window, which pairs leave, and latents");
  settings.fail_if(!window.causal, "\"cache\" needs a causal mixer");
  settings.fail_if(rule.span > 0 && !rule.learned, "\"span\" is of learned scores: \"score\" is \"surprise\"");
  settings.fail_if(rule.span >= rule.window, "\"span\" ", rule.span, " reaches beyond the window, ", rule.window);
  return rule;
}

void complete_cache(Json& layer, int64_t window) {
  if (!layer.contains("cache")) return;
  if (!layer.contains("score")) layer["score"] = "learned";
  if (!layer.contains("fading")) layer["fading"] = kFading;
  if (layer["score"] == "learned" && !layer.contains("span")) layer["span"] = std::min(kSpan, window - 1);
}

std::vector<MechanismOption> cache_options() {
  std::vector<MechanismOption> options{
      {.name = "cache", .help = "exact pairs that a key head keeps beyond the window", .high = 1 << 24},
      {.name = "chunk",
       .help = "pairs that are judged at a time when they have left the window",
       .low = 1,
       .high = 1 << 24,
       .needs = "cache"},
      {.name = "distance",
       .help = "tokens by which a pair of the cache lies at most before a query's chunk",
       .high = 1e12,
       .needs = "cache"},
      {.name = "fading",
       .help = "part of the cache's pairs, from 0 to 1, whose score fades with their age (of conversions: 0.25)",
       .high = 1,
       .whole = false,
       .needs = "cache"},
      {.name = "span",
       .help = "tokens on both sides whose scores count, too, for what lasts (of conversions: 4)",
       .high = 1 << 20,
       .needs = "cache"}};
  for (MechanismOption& option : options) option.later = true;
  return options;
}

}  // namespace cortado
