// OpenAI's Responses API: the server stores conversations, so each turn only reads what is new.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cortado/serve/body.h"
#include "cortado/serve/response_store.h"
#include "cortado/serve/wire.h"

namespace cortado {

// A response that is being generated.
class RunningResponse {
 public:
  // Gets every event of a stream ("response.output_text.delta", ...), and null as a sign of life. Returns whether the
  // client is still connected.
  using Tell = std::function<bool(const Json& event)>;

  const std::string& id() const { return id_; }
  bool streams() const { return stream_; }
  bool in_background() const { return background_; }
  const std::vector<std::string>& unknown() const { return unknown_; }  // fields that were ignored
  Json object() const;                                                  // the response's current state
  std::string failure() const;                                          // the error message; empty if it has not failed
  void cancel();                                                        // ends the response with its text so far
  void forget();                                                        // ends the response and does not store it
  // Waits for the answer and stores it if requested. Returns false if the client is gone, which cancels the answer.
  bool make(const Tell& tell);

 private:
  friend class Responses;
  RunningResponse() = default;
  bool follow(const Tell& tell);
  bool tell_of(const Tell& tell, const char* type, const Json& event);
  void finish(Finish finish);
  void keep(StoredResponse stored);
  void fail(const std::string& why);
  Json message(const char* status) const;
  Json usage() const;

  std::string id_, message_id_, text_;
  std::vector<std::string> unknown_;
  bool stream_ = false, background_ = false;
  std::atomic<bool> store_ = true;
  Engine* engine_ = nullptr;
  ResponseStore* response_store_ = nullptr;
  std::shared_ptr<Answer> answer_;
  Json response_;  // the response object
  Json record_;    // additional data to store
  std::vector<ScoredToken> scores_;
  int64_t events_ = 0;
  mutable std::mutex mutex_;
};

// The methods of /v1/responses: starts responses, and finds, removes and cancels stored ones. Thread-safe.
class Responses {
 public:
  Responses(Engine& engine, const WireLimits& limits, std::unique_ptr<ResponseStore> store);
  ~Responses();  // waits for background responses; the engine must be ending

  // Starts a response. Throws WireError and Busy.
  std::shared_ptr<RunningResponse> create(const Json& body);
  // Calls `failed` with the reason if the response fails.
  void run_in_background(const std::shared_ptr<RunningResponse>& response,
                         const std::function<void(const std::string& why)>& failed = {});

  bool has_store() const;  // whether the store works at the moment

  // Each takes a response's id and returns the API's answer. Throws WireError with status 404 if there is no such
  // response, and with status 400 if the call is not valid, such as cancelling a response that has ended.
  Json get(const std::string& id);
  Json remove(const std::string& id);
  Json cancel(const std::string& id);
  // limit, order ("asc", "desc") and after are the query's values, empty if absent.
  Json input_items(const std::string& id, const std::string& limit, const std::string& order, const std::string& after);

 private:
  struct Turn;
  StoredResponse stored(const std::string& id);
  std::shared_ptr<RunningResponse> running(const std::string& id);
  void read_history(Turn& turn, const std::string& previous);
  void start_sequence(Turn& turn) const;
  Request read_request(Body& body, size_t model, RunningResponse& response) const;
  Json new_object(const Json& body, const Request& request, const RunningResponse& response) const;

  Engine& engine_;
  WireLimits limits_;
  std::unique_ptr<ResponseStore> store_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<RunningResponse>> running_;
  std::vector<std::future<void>> background_;
};

}  // namespace cortado
