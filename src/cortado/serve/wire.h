// OpenAI's API in JSON: parsing of requests and formatting of answers. Without sockets.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/serve/engine.h"

namespace cortado {

// An error answer in OpenAI's form: {"error": {"message", "type", "param", "code"}}.
class WireError : public std::runtime_error {
 public:
  WireError(int status, const std::string& message, std::string param = "", std::string code = "");
  int status() const { return status_; }
  Json body() const;

 private:
  int status_;
  std::string param_, code_;
};

// The longest time until the end of a connection is noticed.
inline constexpr std::chrono::milliseconds kLook{50};

// Limits of requests, in addition to the engine's own.
struct WireLimits {
  int64_t prompt_tokens = 1 << 20;
  int64_t answer_tokens = 4096;  // for any answer; also a chat answer's default
  double seconds = 600;          // per request
  bool strict = false;           // refuse what is out of range or not part of OpenAI's API, even if it has no effect
};

// A call of /v1/completions or /v1/chat/completions.
struct Call {
  bool chat = false;
  std::string id;
  int64_t created = 0;
  size_t model = 0;
  std::vector<Request> requests = {};     // one per prompt
  std::vector<std::string> prompts = {};  // their texts, if they are echoed
  std::vector<std::string> unknown = {};  // fields that were ignored
  bool stream = false;
  bool usage = false;     // send usage at the end of a stream
  bool progress = false;  // report progress of reading the prompts, in a stream
  bool echo = false;
};

// Parse a body. Throw WireError for anything wrong, unknown or unavailable.
Call read_completion(const Json& body, const Engine& engine, const WireLimits& limits);
Call read_chat(const Json& body, const Engine& engine, const WireLimits& limits);

// Returns the model that the body names. Without a name: the only model or `unnamed`, if given. Throws WireError.
size_t find_model(const Json& body, const Engine& engine, std::optional<size_t> unnamed = std::nullopt);

// Waits for the answers and passes the reply to `write` as it comes: the events of a stream, or one object at the end.
// `write` returns whether the client is still connected; it is also called with no bytes just to find out. When it
// returns false, or when something fails, all answers are cancelled.
class Reply {
 public:
  using Write = std::function<bool(const std::string& bytes)>;
  Reply(Call call, Engine& engine);  // throws Busy and InputError
  ~Reply();

  // Writes the whole reply. Returns false if the client is gone. Errors are written as an error object.
  bool write_all(const Write& write);

 private:
  struct Choice {
    std::string text;
    Json logprobs;
    std::optional<Finish> finish;
    int64_t offset = 0;  // characters of `text` whose scores have been sent
  };
  // A group of a prompt's answers, as many as are generated at once.
  struct Share {
    // The prompt, the first of its choices among all choices, and their number.
    size_t request, first, count;
    std::shared_ptr<Answer> answer = nullptr;  // set when it has been requested
    bool begun = false, ended = false;
  };
  void ask(Share& share);
  void cancel();
  const Share& first_of(size_t request) const;
  bool its_turn(size_t share);
  void take_all(Share& share, std::chrono::milliseconds longest, const Write& write);
  void take(Share& share, AnswerPart part, const Write& write);
  void begin(Share& share, const Write& write);
  Json usage() const;
  Json frame(const char* object) const;
  Json whole() const;
  Json event(size_t index, const Json& content) const;
  Json scores_of(const std::vector<ScoredToken>& scores, int64_t& offset) const;
  void send(const Json& event, const Write& write);
  void send_progress(const Write& write);

  Call call_;
  Engine& engine_;
  std::vector<Share> shares_;    // all prompts' shares, one prompt after the other
  std::vector<Choice> choices_;  // all prompts' choices
  Json progress_;                // as last reported
  bool gone_ = false;
};

// The other endpoints.
Json models_list(const Engine& engine);
Json model_entry(const ServedModel& served);
// Without a "model", these use the first one.
Json tokenize(const Json& body, const Engine& engine, const WireLimits& limits);
Json detokenize(const Json& body, const Engine& engine, const WireLimits& limits);
Json tokenizer_info(const std::string& model, const Engine& engine);

// Returns the bytes of the states of finished answers, and the bytes that a key-value cache for all their tokens would
// have.
Json memory_of(const ServedModel& served, const std::vector<std::shared_ptr<Answer>>& answers);

// Return the number of special tokens that a prompt begins with, and the text after them.
size_t marks_before(const ServedModel& served, const std::vector<int32_t>& tokens);
std::string text_of_prompt(const ServedModel& served, const std::vector<int32_t>& tokens);

// Returns the scores in the form of chat completions: a list of tokens with log-probability, bytes and the likeliest
// alternatives.
Json token_scores(const ServedModel& served, const std::vector<ScoredToken>& scores);

// Returns a random id: `prefix`, such as "chatcmpl-", and 24 digits and letters.
std::string new_id(const std::string& prefix);
// Serialises JSON. Bytes that are not UTF-8, which a byte-level model may generate, become U+FFFD.
std::string dump(const Json& json);

}  // namespace cortado
