// OpenAI's API in JSON: what a body asks for, and what answers look like. No sockets.
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

// An answer that is an error object: {"error": {"message", "type", "param", "code"}}.
class WireError : public std::runtime_error {
 public:
  WireError(int status, const std::string& message, std::string param = "", std::string code = "");
  int status() const { return status_; }
  Json body() const;

 private:
  int status_;
  std::string param_, code_;
};

// What limits requests, beside the engine's own limits.
struct WireLimits {
  int64_t prompt_tokens = 1 << 20;
  int64_t answer_tokens = 4096;  // of any answer; what a conversation's answer has if nobody says otherwise
  double seconds = 600;          // of a request
  bool strict = false;           // what is out of range, or not of OpenAI's API, is refused although it changes nothing
};

// A call of /v1/completions or /v1/chat/completions.
struct Call {
  bool chat = false;
  std::string id;
  int64_t created = 0;
  size_t model = 0;
  std::vector<Request> requests = {};     // one a prompt
  std::vector<std::string> prompts = {};  // their texts, where echoed
  std::vector<std::string> unknown = {};  // fields that were not looked at
  bool stream = false;
  bool usage = false;     // at the end of a stream
  bool progress = false;  // of reading the prompts, in a stream
  bool echo = false;
};

// Of a body; anything that is wrong, unknown or not to be had: WireError.
Call read_completion(const Json& body, const Engine& engine, const WireLimits& limits);
Call read_chat(const Json& body, const Engine& engine, const WireLimits& limits);

// Which model a name is; absent or empty: the only one, or `unnamed`, if given. WireError.
size_t find_model(const Json& body, const Engine& engine, std::optional<size_t> unnamed = std::nullopt);

// Waits for the answers and gives the reply to `write` as it comes: the events of a stream, or one object at the end.
// `write` returns whether there is still a reader, and is also called with nothing to find out; once it has said no,
// or something has failed, all answers are cancelled.
class Reply {
 public:
  using Write = std::function<bool(const std::string& bytes)>;
  Reply(Call call, Engine& engine);  // Busy, InputError
  ~Reply();

  // Writes all that there is. False: the reader is gone. Errors are written as an error object.
  bool write_all(const Write& write);

 private:
  struct Choice {
    std::string text;
    Json logprobs;
    std::optional<Finish> finish;
    int64_t offset = 0;  // characters of `text` that scores have told of
  };
  // Some of a prompt's answers: as many as are written at once.
  struct Share {
    size_t request, first, count;              // of which prompt; the first of all choices, how many
    std::shared_ptr<Answer> answer = nullptr;  // once it has been asked for
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
  std::vector<Share> shares_;    // each prompt's, one behind the other
  std::vector<Choice> choices_;  // each prompt's
  Json progress_;                // as last told
  bool gone_ = false;
};

// The other endpoints.
Json models_list(const Engine& engine);
Json model_entry(const ServedModel& served);
// Without a "model": of the first.
Json tokenize(const Json& body, const Engine& engine, const WireLimits& limits);
Json detokenize(const Json& body, const Engine& engine, const WireLimits& limits);
Json tokenizer_info(const std::string& model, const Engine& engine);

// What the sequences of answers that have ended hold, and what keys and values of all their tokens would be, in bytes.
Json memory_of(const ServedModel& served, const std::vector<std::shared_ptr<Answer>>& answers);

// The marks that a prompt begins with, which are none of its text, and the text behind them.
size_t marks_before(const ServedModel& served, const std::vector<int32_t>& tokens);
std::string text_of_prompt(const ServedModel& served, const std::vector<int32_t>& tokens);

// Of conversations: a list of tokens with their scores, bytes and the likeliest in their place.
Json token_scores(const ServedModel& served, const std::vector<ScoredToken>& scores);

// A random name: "chatcmpl-" and 24 digits and letters.
std::string new_id(const std::string& prefix);
// Written with U+FFFD for what is not UTF-8, as a byte model may write.
std::string dump(const Json& json);

}  // namespace cortado
