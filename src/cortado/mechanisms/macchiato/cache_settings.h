// The settings of macchiato's sparse cache: of a mixer, of conversions, and as options of commands.
#pragma once

#include "cortado/mechanisms/macchiato/cache.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

// Reads "cache", "score", "chunk", "distance", "fading" and "span" of a layer with this window and number of latents.
// Throws InputError if what a cache needs is missing.
CacheRule read_cache_rule(JsonReader& settings, const AttentionSettings& window, int64_t latents);

// Adds the settings that a converted layer with a cache needs and does not have.
void complete_cache(Json& layer, int64_t window);

std::vector<MechanismOption> cache_options();

}  // namespace cortado
