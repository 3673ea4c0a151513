// What a model's layers do with a text, for those who look: POST /v1/inspect.
#pragma once

#include <atomic>

#include "cortado/serve/wire.h"

namespace cortado {

struct InspectLimits {
  int64_t tokens = 512;
  int64_t numbers = int64_t{1} << 20;  // of an answer
};

// One text at a time is read anew, from its first token, in a thread of its own that gives way to the engine's: both
// read the same weights, and nothing else is shared.
class Inspector {
 public:
  Inspector(Engine& engine, const WireLimits& wire, const InspectLimits& limits = {})
      : engine_(engine), wire_(wire), limits_(limits) {}

  // WireError; Busy while another text is looked at.
  Json inspect(const Json& body);

 private:
  Engine& engine_;
  const WireLimits wire_;
  const InspectLimits limits_;
  std::atomic<bool> busy_ = false;
};

}  // namespace cortado
