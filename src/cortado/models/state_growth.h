// The size of a sequence's state as a model stores it, with caches in the type that was chosen for them.
#pragma once

#include "cortado/models/backbone.h"

namespace cortado {

struct StateGrowth {
  int64_t constant = 0;   // bytes of the parts that stop growing, once all windows are full
  int64_t per_token = 0;  // bytes that every token adds
};
StateGrowth state_growth(const Backbone& model);

// The type of caches; the activations' type if there are none.
at::ScalarType cache_type(const Backbone& model);

int64_t kept_bytes(const Backbone& model, int64_t tokens);

}  // namespace cortado
