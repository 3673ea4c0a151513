// OpenAI's /v1/embeddings: a text as one vector, pooled over the model's hidden states.
#pragma once

#include <string>
#include <vector>

#include "cortado/serve/wire.h"

namespace cortado {

// A call of /v1/embeddings.
struct EmbeddingCall {
  size_t model = 0;
  std::vector<Request> requests = {};  // one per text
  std::vector<std::string> unknown = {};
  bool base64 = false;                     // numbers as the base64 of their float32 bytes
  bool normalize = true;                   // to length 1
  std::optional<int64_t> dimensions = {};  // so many of the first numbers, before they are normalized
};

// Parses a body. Throws WireError for anything wrong, unknown or unavailable.
EmbeddingCall read_embeddings(const Json& body, const Engine& engine, const WireLimits& limits);

// Waits for all texts' vectors and writes the answer. Returns false if the client is gone (Reply::Write). Throws Busy,
// and WireError if the texts are not read in time.
bool write_embeddings(const EmbeddingCall& call, Engine& engine, const Reply::Write& write);

}  // namespace cortado
