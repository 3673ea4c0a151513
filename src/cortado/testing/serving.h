// Engines over a small byte-level chat model, for tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cortado/serve/engine.h"
#include "cortado/serve/wire.h"
#include "cortado/testing/models.h"

namespace cortado::testing {

// A byte tokenizer with ChatML's marks as plain text, or without a chat template (style ""). A zero byte ends an
// answer.
class ChattyBytes : public Tokenizer {
 public:
  explicit ChattyBytes(const std::string& style = "chatml") : bytes_(make_tokenizer("byte", {})) {
    special_.chat.text = known_chat_template(style);
    special_.stops = {0};
  }
  std::string kind() const override { return bytes_->kind(); }
  int64_t vocabulary() const override { return bytes_->vocabulary(); }
  std::vector<int32_t> encode(std::string_view text) const override { return bytes_->encode(text); }
  std::string decode(const std::vector<int32_t>& tokens) const override { return bytes_->decode(tokens); }
  const SpecialTokens& special() const override { return special_; }
  void save(const std::string& directory) const override { bytes_->save(directory); }

 private:
  std::shared_ptr<Tokenizer> bytes_;
  SpecialTokens special_;
};

// Decodes like SentencePiece: a space belongs to the word after it, and the first word of a text loses its space.
class Spaced : public ChattyBytes {
 public:
  std::string decode(const std::vector<int32_t>& tokens) const override {
    const std::string text = ChattyBytes::decode(tokens);
    return text.starts_with(' ') ? text.substr(1) : text;
  }
  std::string piece(int32_t token) const override { return ChattyBytes::decode({token}); }
};

// A tokenizer with a begin token that is not part of the text.
class Marked : public ChattyBytes {
 public:
  Marked() {
    special_ = ChattyBytes::special();
    special_.begin = 1;
    special_.prefix = {1};
  }
  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    for (const int32_t token : tokens) text += token == 1 ? "<s>" : ChattyBytes::decode({token});
    return text;
  }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_;
};

// Makes an engine of one small chat model with random weights, called "it".
inline std::unique_ptr<Engine> chatty_engine(const EngineOptions& options = {},
                                             const std::string& mixer = R"({"mixer": "latte"})") {
  const auto model = wide_model(mixer);
  model->set_fingerprint("test");
  return std::make_unique<Engine>(
      std::vector<ServedModel>{{.name = "it", .model = model, .tokenizer = std::make_shared<ChattyBytes>()}}, options);
}

// Makes an engine whose model has no chat template; `sampling` holds the model's defaults.
inline std::unique_ptr<Engine> untaught_engine(const SamplingOptions& sampling = {}) {
  const auto model = wide_model(R"({"mixer": "latte"})");
  model->set_fingerprint("test");
  return std::make_unique<Engine>(
      std::vector<ServedModel>{
          {.name = "it", .model = model, .tokenizer = std::make_shared<ChattyBytes>(""), .sampling = sampling}},
      EngineOptions{});
}

// Returns the whole answer to a call.
inline Json reply_to(Engine& engine, const std::string& body, bool chat) {
  Reply reply(
      chat ? read_chat(parse_json(body, "test"), engine, {}) : read_completion(parse_json(body, "test"), engine, {}),
      engine);
  std::string bytes;
  EXPECT_TRUE(reply.write_all([&](const std::string& part) {
    bytes += part;
    return true;
  }));
  return parse_json(bytes, "test");
}

// Returns the events of a stream without the final [DONE].
inline std::vector<Json> events_of(Engine& engine, const std::string& body, bool chat) {
  Reply reply(
      chat ? read_chat(parse_json(body, "test"), engine, {}) : read_completion(parse_json(body, "test"), engine, {}),
      engine);
  std::vector<std::string> all;
  EXPECT_TRUE(reply.write_all([&](const std::string& part) {
    if (!part.empty()) all.push_back(part);
    return true;
  }));
  EXPECT_EQ(all.back(), "data: [DONE]\n\n");
  all.pop_back();
  std::vector<Json> events;
  for (const auto& event : all) {
    EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n"));
    events.push_back(parse_json(event.substr(6), "test"));
  }
  return events;
}

// Returns the status and the field of a refused call, as "400 messages"; "taken" if it is accepted.
template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const WireError& error) {
    const Json object = error.body().at("error");
    EXPECT_FALSE(object.at("message").get<std::string>().empty());
    return std::to_string(error.status()) + " " +
           (object.at("param").is_null() ? "" : object.at("param").get<std::string>());
  }
  return "taken";
}

}  // namespace cortado::testing
