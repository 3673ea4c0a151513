// The settings of macchiato's sparse cache: a mixer's, those of conversions, and their options.
#pragma once

#include "cortado/mechanisms/macchiato/cache.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

// "cache", "score", "chunk", "distance", "fading" and "span" of a layer with this window and so many latents. InputError:
// what a cache needs is not there.
CacheRule read_cache_rule(JsonReader& settings, const AttentionSettings& window, int64_t latents);

// What a converted layer with a cache has, where it does not say so.
void complete_cache(Json& layer, int64_t window);

std::vector<MechanismOption> cache_options();

}  // namespace cortado
