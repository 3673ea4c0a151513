#include "cortado/serve/wire.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/generate/defaults.h"
#include "cortado/testing/serving.h"

namespace cortado {
namespace {

using testing::chatty_engine;

Json parsed(const std::string& text) { return parse_json(text, "test"); }

// The field that is complained of, and the status: "400 temperature".
std::string refused(const Engine& engine, const std::string& body, bool chat) {
  return testing::refusal_of([&] {
    const Json json = parsed(body);
    if (chat) {
      read_chat(json, engine, {});
    } else {
      read_completion(json, engine, {});
    }
  });
}

Json reply_to(Engine& engine, const std::string& body, bool chat) {
  Reply reply(chat ? read_chat(parsed(body), engine, {}) : read_completion(parsed(body), engine, {}), engine);
  std::string bytes;
  EXPECT_TRUE(reply.write_all([&](const std::string& part) {
    bytes += part;
    return true;
  }));
  return parsed(bytes);
}

// The events of a stream, but for the last, which says [DONE].
std::vector<Json> events_of(Engine& engine, const std::string& body, bool chat) {
  Reply reply(chat ? read_chat(parsed(body), engine, {}) : read_completion(parsed(body), engine, {}), engine);
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
    events.push_back(parsed(event.substr(6)));
  }
  return events;
}

TEST(Wire, AConversationOfAModelThatWasNotTaughtToIsOneText) {
  const auto engine = testing::untaught_engine();
  const Call call =
      read_chat(parsed(R"({"messages": [{"role": "system", "content": "Verona."}, {"role": "user", "content": "ROMEO:"},
                              {"role": "assistant", "content": " Hark!"}, {"role": "user", "content": "JULIET:"}]})"),
                *engine, {});
  const auto& request = call.requests.at(0);
  EXPECT_EQ(engine->models()[0].tokenizer->decode(request.tokens), "Verona.\nROMEO: Hark!\nJULIET:");
  EXPECT_EQ(request.most_tokens, 200);
  EXPECT_EQ(request.marks, (std::vector<int64_t>{7, 14, 20}));  // each message's end
  EXPECT_EQ(models_list(*engine).at("data")[0].at("chat"), nullptr);
  EXPECT_EQ(models_list(*chatty_engine()).at("data")[0].at("chat"), "chatml");
}

TEST(Wire, WhatIsNotSaidIsSampledAsTheModelHasIt) {
  const SamplingOptions own{.temperature = 0.2, .top_k = 5, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.1};
  const auto engine = testing::untaught_engine(own);
  const auto sampling = [&](const char* fields) {
    const std::string body = concat(R"({"prompt": "a")", fields, "}");
    return read_completion(parsed(body), *engine, {}).requests.at(0).sampling;
  };
  const SamplingOptions asked = sampling("");
  EXPECT_EQ(sampling_json(asked), sampling_json(own));
  EXPECT_EQ(models_list(*engine).at("data")[0].at("sampling"), sampling_json(own));
  const SamplingOptions other =
      sampling(R"(, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1)");
  EXPECT_EQ(sampling_json(other), sampling_json({}));
  EXPECT_EQ(sampling(R"(, "temperature": 0.7)").top_p, 0.9);
}

TEST(Wire, RefusesWhatIsWrongByItsName) {
  const auto engine = chatty_engine();
  const std::vector<std::pair<std::string, std::string>> completions = {
      {R"({"prompt": "a", "temperature": "hot"})", "400 temperature"},
      {R"({"prompt": "a", "temperature": -1})", "400 temperature"},
      {R"({"prompt": "a", "max_tokens": 1.5})", "400 max_tokens"},
      {R"({"prompt": "a", "max_tokens": 100000})", "400 max_tokens"},
      {R"({"prompt": "a", "top_p": 2})", "400 top_p"},
      {R"({"prompt": "a", "n": 0})", "400 n"},
      {R"({"prompt": "a", "best_of": 2})", "400 best_of"},
      {R"({"prompt": "a", "stop": [1]})", "400 stop"},
      {R"({"prompt": "a", "stop": ""})", "400 stop"},
      {R"({"prompt": "a", "logprobs": true})", "400 logprobs"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "400 logit_bias"},
      {R"({"prompt": "a", "logit_bias": {"1": 101}})", "400 logit_bias"},
      {R"({"prompt": "a", "stream": 1})", "400 stream"},
      {R"({"prompt": "a", "stream_options": {}})", "400 stream_options"},
      {R"({"prompt": "a", "suffix": "b"})", "400 suffix"},
      {R"({"prompt": "a", "seed": 1e300})", "400 seed"},
      {R"({"prompt": "a", "response_format": {"type": "yaml"}})", "400 response_format.type"},
      {R"({"prompt": "a", "temprature": 1})", "400 temprature"},
      {R"({"prompt": ""})", "400 prompt"},
      {R"({})", "400 prompt"},
      {R"({"prompt": []})", "400 prompt"},
      {R"({"prompt": [1, "a"]})", "400 prompt"},
      {R"({"prompt": [[1], "a"]})", "400 prompt"},
      {R"({"prompt": [256]})", "400 prompt"},
      {R"({"prompt": [-1]})", "400 prompt"},
      {R"({"prompt": "a", "model": "other"})", "404 model"},
      {R"([])", "400 "}};
  for (const auto& [body, expected] : completions) EXPECT_EQ(refused(*engine, body, false), expected) << body;
  const std::string user = R"("messages": [{"role": "user", "content": "a"}])";
  const std::vector<std::pair<std::string, std::string>> chats = {
      {R"({"messages": []})", "400 messages"},
      {R"({"messages": [{"role": "user"}]})", "400 messages[0].content"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "400 messages[0].role"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "400 messages[0].content[0].type"},
      {"{" + user + R"(, "tools": [{}]})", "400 tools"},
      {"{" + user + R"(, "top_logprobs": 2})", "400 top_logprobs"},
      {"{" + user + R"(, "response_format": {"type": "json_schema"}})", "400 response_format.json_schema"},
      {"{" + user + R"(, "stream_options": {"include_usage": true}})", "400 stream_options"}};
  for (const auto& [body, expected] : chats) EXPECT_EQ(refused(*engine, body, true), expected) << body;
  EXPECT_EQ(refused(*engine, "{" + user + R"(, "tools": [], "user": "x", "metadata": {"a": "b"}, "n": null})", true),
            "taken");
}

TEST(Wire, CompletionsOfSeveralPromptsAndChoicesStandInOrder) {
  const auto engine = chatty_engine();
  const auto one = [&](const std::string& prompt, int64_t seed) {
    const Json body = {{"prompt", prompt}, {"seed", seed}, {"max_tokens", 8}};
    return reply_to(*engine, body.dump(), false).at("choices")[0].at("text").get<std::string>();
  };
  const Json reply = reply_to(*engine, R"({"prompt": ["First", "Second"], "n": 2, "seed": 5, "max_tokens": 8})", false);
  ASSERT_EQ(reply.at("choices").size(), 4u);
  const std::vector<std::string> expected = {one("First", 5), one("First", 6), one("Second", 5), one("Second", 6)};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(reply.at("choices")[i].at("index"), i);
    EXPECT_EQ(reply.at("choices")[i].at("text"), expected[i]);
    EXPECT_EQ(reply.at("choices")[i].at("finish_reason"), "length");
  }
  EXPECT_EQ(reply.at("usage").at("prompt_tokens"), 11);
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), 32);
}

// What lm-eval adds up: one entry a token of the prompt, and one more.
TEST(Wire, EchoedPromptsHaveTheScoresOfTheirTokens) {
  const auto engine = chatty_engine();
  const Json reply = reply_to(
      *engine,
      R"({"prompt": [[72, 101, 108, 108, 111]], "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0})",
      false);
  const Json& choice = reply.at("choices")[0];
  EXPECT_TRUE(choice.at("text").get<std::string>().starts_with("Hello"));
  const Json& scores = choice.at("logprobs");
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(scores.at(list).size(), 6u) << list;
  EXPECT_TRUE(scores.at("token_logprobs")[0].is_null() && scores.at("top_logprobs")[0].is_null());
  EXPECT_EQ(scores.at("tokens")[4], "o");
  for (size_t i = 1; i < 6; ++i) {
    ASSERT_EQ(scores.at("top_logprobs")[i].size(), 1u);
    const double best = scores.at("top_logprobs")[i].begin().value();
    EXPECT_LE(scores.at("token_logprobs")[i].get<double>(), best);
    EXPECT_EQ(scores.at("text_offset")[i], i);
  }
  // The last was chosen as the likeliest: the same number, to the last digit.
  EXPECT_EQ(scores.at("token_logprobs")[5], scores.at("top_logprobs")[5].begin().value());
}

TEST(Wire, AStreamSaysWhatTheWholeSays) {
  const auto engine = chatty_engine();
  const std::string start = R"({"messages": [{"role": "user", "content": "Hi"}], "seed": 3, "max_tokens": 20)";
  const Json whole = reply_to(*engine, start + "}", true);
  std::string text;
  const auto events =
      events_of(*engine, start + R"(, "stream": true, "stream_options": {"include_usage": true}})", true);
  for (const Json& event : events) {
    EXPECT_EQ(event.at("object"), "chat.completion.chunk");
    for (const Json& choice : event.at("choices")) text += choice.at("delta").value("content", "");
  }
  EXPECT_EQ(text, whole.at("choices")[0].at("message").at("content"));
  EXPECT_EQ(events.front().at("choices")[0].at("delta").at("role"), "assistant");
  EXPECT_EQ(events[events.size() - 2].at("choices")[0].at("finish_reason"), whole.at("choices")[0].at("finish_reason"));
  EXPECT_EQ(events.back().at("usage").at("completion_tokens"), whole.at("usage").at("completion_tokens"));
  EXPECT_EQ(events.back().at("choices").size(), 0u);
}

TEST(Wire, ConversationsGoOnFromWhatWasRead) {
  const auto engine = chatty_engine();
  const std::string first = R"({"role": "user", "content": "A question that is long enough to be worth keeping."})";
  const Json one = reply_to(*engine, R"({"messages": [)" + first + R"(], "max_tokens": 5, "temperature": 0})", true);
  EXPECT_EQ(one.at("usage").at("prompt_tokens_details").at("cached_tokens"), 0);
  const Json answer = one.at("choices")[0].at("message");
  const Json next = {{"messages",
                      {parsed(first),
                       {{"role", "assistant"}, {"content", answer.at("content")}},
                       {{"role", "user"}, {"content", "And?"}}}},
                     {"max_tokens", 5}};
  const Json two = reply_to(*engine, next.dump(), true);
  EXPECT_GE(two.at("usage").at("prompt_tokens_details").at("cached_tokens").get<int64_t>(),
            one.at("usage").at("prompt_tokens").get<int64_t>());
}

TEST(Wire, AReaderWhoGoesCancelsTheAnswer) {
  const auto engine = chatty_engine();
  const Json body = {{"prompt", "x"}, {"max_tokens", 4000}, {"stream", true}, {"logit_bias", {{"0", -100}}}};
  {
    Reply reply(read_completion(body, *engine, {}), *engine);
    int parts = 0;
    EXPECT_FALSE(reply.write_all([&](const std::string& part) { return part.empty() || ++parts < 3; }));
  }
  EXPECT_TRUE(engine->drain(10));
}

TEST(Wire, TextsAndTokensBothWays) {
  const auto engine = chatty_engine();
  EXPECT_EQ(tokenize(parsed(R"({"prompt": "ab"})"), *engine).at("tokens"), parsed("[97, 98]"));
  EXPECT_EQ(detokenize(parsed(R"({"tokens": [97, 98]})"), *engine).at("prompt"), "ab");
  EXPECT_THROW(detokenize(parsed(R"({"tokens": [300]})"), *engine), WireError);
  EXPECT_EQ(tokenizer_info(*engine).at("eos_token"), std::string(1, '\0'));
  EXPECT_EQ(models_list(*engine).at("data")[0].at("id"), "it");
}

}  // namespace
}  // namespace cortado
