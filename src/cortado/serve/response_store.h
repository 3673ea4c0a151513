// Where the Responses API keeps conversations: by the response that ended each turn, with the state behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/serve/engine.h"

namespace cortado {

// A response, and what the next one goes on from.
struct StoredResponse {
  std::string id;
  Json record;                      // what the API says of it (serve/responses.cpp)
  size_t model = 0;                 // of the engine's
  std::vector<int32_t> tokens;      // of the whole conversation
  StateCache::Found snapshot = {};  // of a beginning of them; none: they are read again
};

// Every method may be called by several threads. A store that cannot be reached or written to: Failure.
class ResponseStore {
 public:
  virtual ~ResponseStore() = default;
  virtual void put(const StoredResponse& response) = 0;
  // None: there is no such response, or it has expired. One that is damaged: Failure.
  virtual std::optional<StoredResponse> get(const std::string& id) = 0;
  virtual bool remove(const std::string& id) = 0;  // false: there was none
  virtual void check() {}                          // Failure: it cannot be used at this moment
};

struct StoreOptions {
  std::string place;                  // empty: memory; a folder; redis://HOST:PORT
  double seconds = 30 * 86400;        // then a response is gone
  int64_t bytes = int64_t{10} << 30;  // of a folder at most: the oldest go
};

// In memory only tokens are kept: the engine's own cache has the states. InputError: the place cannot be used.
std::unique_ptr<ResponseStore> open_store(const StoreOptions& options, const Engine& engine);

// Whether a text can be the id of a response: what else would be a path.
bool is_response_id(const std::string& id);

// A response as a safetensors file, checked when it is read: a state of another model, or damage, is an InputError.
void save_response(const std::string& path, const StoredResponse& response, const Engine& engine);
StoredResponse load_response(const std::string& path, const std::string& id, const Engine& engine);

}  // namespace cortado
