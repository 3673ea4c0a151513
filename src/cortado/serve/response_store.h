// Stores the conversations of the Responses API: each response with the state at its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/formats/safetensors.h"
#include "cortado/serve/engine.h"

namespace cortado {

// A response with the state that the next one continues from.
struct StoredResponse {
  std::string id;
  Json record;                      // what the API returns about it (serve/responses.cpp)
  size_t model = 0;                 // index into the engine's models
  std::vector<int32_t> tokens;      // tokens of the whole conversation
  StateCache::Found snapshot = {};  // of a prefix of the tokens; none: they are read again
};

// All methods are thread-safe. They throw Failure if the store can't be reached or written.
class ResponseStore {
 public:
  virtual ~ResponseStore() = default;
  virtual void put(const StoredResponse& response) = 0;
  // Returns nothing if there is no such response or it has expired. Throws Failure if it is damaged.
  virtual std::optional<StoredResponse> get(const std::string& id) = 0;
  virtual bool remove(const std::string& id) = 0;  // returns false if there was none
  virtual void check() {}                          // throws Failure if the store is unusable at the moment
};

// Where responses are stored, and for how long.
struct StoreOptions {
  std::string place;                  // empty: in memory; a folder; redis://HOST:PORT
  double seconds = 30 * 86400;        // lifetime of a response
  int64_t bytes = int64_t{10} << 30;  // largest size of a folder; the oldest responses are removed
};

// Opens a store. In memory only tokens are kept, because the engine's cache has the states. Throws InputError if the
// place can't be used.
std::unique_ptr<ResponseStore> open_store(const StoreOptions& options, const Engine& engine);

// Whether a text has the form of a response's id; others could be paths.
bool is_response_id(const std::string& id);

// Convert a response to a safetensors file, in memory, and back. response_of_file() checks it, and throws InputError if
// it is damaged or of another model.
TensorFile file_of_response(const StoredResponse& response, const Engine& engine);
StoredResponse response_of_file(const TensorFile& file, const std::string& id, const Engine& engine);

}  // namespace cortado
