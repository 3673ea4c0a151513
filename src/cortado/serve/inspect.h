// Shows what a model's layers do with a text: POST /v1/inspect.
#pragma once

#include <atomic>

#include "cortado/serve/wire.h"

namespace cortado {

// The largest text and the largest answer of POST /v1/inspect.
struct InspectLimits {
  int64_t tokens = 512;
  int64_t numbers = int64_t{1} << 20;  // per answer
};

// Reads one text at a time from its first token, in a thread with lower priority than the engine's. The two share only
// the model's weights.
class Inspector {
 public:
  Inspector(Engine& engine, const WireLimits& wire, const InspectLimits& limits = {})
      : engine_(engine), wire_(wire), limits_(limits) {}

  // Returns the answer. Throws WireError, and Busy while another text is being inspected.
  Json inspect(const Json& body);

 private:
  Engine& engine_;
  const WireLimits wire_;
  const InspectLimits limits_;
  std::atomic<bool> busy_ = false;
};

}  // namespace cortado
