#include "cortado/serve/responses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/testing/serving.h"

namespace cortado {
namespace {

using testing::chatty_engine;

// The API with its engine and store.
struct Service {
  std::unique_ptr<Engine> engine = chatty_engine();
  std::unique_ptr<Responses> responses;

  explicit Service(const std::string& store = "") {
    responses = std::make_unique<Responses>(*engine, WireLimits{}, open_store({.place = store}, *engine));
  }
  Json make(const Json& body) {
    const auto made = responses->create(body);
    EXPECT_TRUE(made->make([](const Json&) { return true; }));
    return made->object();
  }
};

std::string text_of(const Json& response) { return response.at("output")[0].at("content")[0].at("text"); }
int64_t cached(const Json& response) { return response.at("usage").at("input_tokens_details").at("cached_tokens"); }
int64_t prompt_tokens(const Json& response) { return response.at("usage").at("input_tokens"); }

Json ask(const std::string& input, const Json& previous = nullptr, const std::string& instructions = "") {
  Json body = {{"input", input}, {"max_output_tokens", 12}, {"temperature", 0.7}, {"seed", 4}};
  if (!previous.is_null()) body["previous_response_id"] = previous.at("id");
  if (!instructions.empty()) body["instructions"] = instructions;
  return body;
}

TEST(Responses, ATurnReadsOnlyWhatIsNew) {
  Service service;
  const Json first = service.make(ask("My name is Anna."));
  EXPECT_EQ(first.at("status"), "incomplete");
  EXPECT_EQ(cached(first), 0);
  const Json second = service.make(ask("What is my name?", first));
  // All tokens but the answer's last one, which the first turn generated but did not read.
  EXPECT_EQ(cached(second), prompt_tokens(first) + 11);
  EXPECT_EQ(service.responses->get(second.at("id")).at("output"), second.at("output"));
  // Forks: a repeated question gets an equal answer, another question another one, and nothing is read again.
  EXPECT_EQ(text_of(service.make(ask("What is my name?", first))), text_of(second));
  EXPECT_EQ(cached(service.make(ask("Who am I?", first))), cached(second));
}

// Vercel's ai refers to earlier answers by id instead of repeating them.
TEST(Responses, AnswersCanBeNamedByTheirItems) {
  Service service;
  const Json first = service.make(ask("My name is Anna."));
  const Json item = {{"type", "item_reference"}, {"id", first.at("output")[0].at("id")}};
  const auto question = [](const std::string& text) { return Json{{"role", "user"}, {"content", text}}; };
  Json body = ask("");
  body["input"] = {question("My name is Anna."), item, question("Who am I?")};
  Json written = body;
  written["input"][1] = {{"role", "assistant"}, {"content", text_of(first)}};
  EXPECT_EQ(text_of(service.make(body)), text_of(service.make(written)));
  for (const char* id : {"msg_000000000000000000000000", "msg_../../x", "x", ""}) {
    body["input"][1]["id"] = id;
    EXPECT_EQ(testing::refusal_of([&] { service.responses->create(body); }), "404 response_id") << id;
  }
}

TEST(Responses, SystemMessagesStayWhereTheyAre) {
  Service service;
  const auto says = [](const std::string& role, const std::string& text) {
    return Json{{"role", role}, {"content", text}};
  };
  Json body = ask("");
  body["input"] = {says("system", "Be brief."), says("user", "Hello."), says("developer", "Be kind.")};
  const Json first = service.make(body);
  body["previous_response_id"] = first.at("id");
  body["input"] = {says("system", "Be true."), says("user", "Go on.")};
  const Json second = service.make(body);
  EXPECT_EQ(cached(second), prompt_tokens(first) + 11);
  const std::string more =
      "<|im_end|>\n<|im_start|>system\nBe true.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt_tokens(second), prompt_tokens(first) + 12 + static_cast<int64_t>(more.size()));
}

// A template that leaves thoughts out of earlier answers writes another text than the model has read.
TEST(Responses, WhatATemplateRewritesIsReadAnew) {
  class Thinks : public testing::ChattyBytes {
   public:
    Thinks() {
      special_ = ChattyBytes::special();
      special_.chat.text =
          "{% for m in messages %}{{ m.role[0] }}{{ m.content[1:] if m.role == 'assistant' else m.content }}!{% endfor "
          "%}";
    }
    const SpecialTokens& special() const override { return special_; }

   private:
    SpecialTokens special_;
  };
  Service service;
  const auto model = chatty_engine()->models()[0].model;
  service.engine = std::make_unique<Engine>(
      std::vector<ServedModel>{{.name = "it", .model = model, .tokenizer = std::make_shared<Thinks>()}},
      EngineOptions{});
  service.responses = std::make_unique<Responses>(*service.engine, WireLimits{}, open_store({}, *service.engine));
  Json body = ask("Hello.");
  body["logit_bias"] = {{"98", 100}};  // the answer is bbbbbbbbbbbb
  const Json first = service.make(body);
  const Json second = service.make(ask("Why?", first));
  EXPECT_EQ(prompt_tokens(second), static_cast<int64_t>(std::string("uHello.!abbbbbbbbbbb!uWhy?!").size()));
  EXPECT_LE(cached(second), prompt_tokens(first));
}

TEST(Responses, WhatChangesNothingIsTaken) {
  Service service;
  for (const Json& fields :
       {Json{{"include", "reasoning.encrypted_content"}}, Json{{"truncation", "auto"}},
        Json{{"reasoning", {{"effort", "none"}}}}, Json{{"text", {{"verbosity", "low"}}}},
        Json{{"max_output_tokens", -1}}, Json{{"max_output_tokens", nullptr}, {"max_tokens", 3}},
        Json{{"max_tool_calls", 3}}, Json{{"tools", {{{"type", "function"}}}}, {"tool_choice", "none"}},
        Json{{"moderation", nullptr}, {"prompt_cache_options", {{"mode", "implicit"}}}}}) {
    Json body = ask("Hello.");
    body.update(fields);
    EXPECT_EQ(testing::refusal_of([&] { service.responses->create(body)->cancel(); }), "taken") << fields;
  }
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"include", "message.output_text.logprob"},
                                                 {"reasoning", {{"effort", "low"}}},
                                                 {"truncation", "automatic"},
                                                 {"conversation", "conv_1"},
                                                 {"prompt_cache_options", {{"prewarm", true}}}}) {
    Json body = ask("Hello.");
    body[key] = value;
    EXPECT_EQ(testing::refusal_of([&] { service.responses->create(body); }), "400 " + key);
  }
}

TEST(Responses, OtherInstructionsAreReadAnew) {
  Service service;
  Json body = ask("Hello.", nullptr, "Be brief.");
  body["logit_bias"] = {{"97", 100}};  // letters: their text has the same tokens again
  const Json first = service.make(body);
  const Json same = service.make(ask("Go on.", first, "Be brief."));
  EXPECT_EQ(cached(same), prompt_tokens(first) + 11);
  const Json none = service.make(ask("Go on.", first));
  EXPECT_LT(cached(none), prompt_tokens(first));
  EXPECT_EQ(prompt_tokens(none) + static_cast<int64_t>(std::string("<|im_start|>system\nBe brief.<|im_end|>\n").size()),
            prompt_tokens(same));
}

TEST(Responses, OfAModelThatWasNotTaughtToChatGoOnWithTheText) {
  Service service;
  service.engine = testing::untaught_engine();
  service.responses = std::make_unique<Responses>(*service.engine, WireLimits{}, open_store({}, *service.engine));
  Json body = ask("ROMEO:");
  body["logit_bias"] = {{"97", 100}};
  const Json first = service.make(body);
  EXPECT_EQ(prompt_tokens(first), 6);
  const Json second = service.make(ask("JULIET:", first));
  EXPECT_EQ(cached(second), 6 + 11);
  EXPECT_EQ(prompt_tokens(second), 6 + 12 + 8);                       // plus a line break
  const Json third = service.make(ask("JULIET:", first, "Verona."));  // read again, after a line of its own
  EXPECT_EQ(prompt_tokens(third), prompt_tokens(second) + 8);
  // Nobody limits the answer, and the model does not know where answers end.
  EXPECT_EQ(service.make({{"input", "ROMEO:"}, {"seed", 1}, {"logit_bias", {{"0", -100}}}})["usage"]["output_tokens"],
            200);
}

TEST(Responses, GoOnBeforeTheMarkThatEndsAText) {
  Service service;
  service.engine = testing::untaught_engine();
  service.responses = std::make_unique<Responses>(*service.engine, WireLimits{}, open_store({}, *service.engine));
  const Json first = service.make({{"input", "ROMEO:"}, {"logit_bias", {{"0", 100}}}});  // ends at once
  EXPECT_EQ(first.at("status"), "completed");
  EXPECT_EQ(prompt_tokens(service.make(ask("JULIET:", first))), 6 + 8);
}

TEST(Responses, SurviveARestartWithTheSameBits) {
  const TemporaryDirectory folder;
  Json first, second;
  {
    Service service(folder.path());
    first = service.make(ask("My name is Anna."));
    second = service.make(ask("What is my name?", first));
  }
  Service again(folder.path());
  EXPECT_EQ(again.responses->get(first.at("id")).at("output"), first.at("output"));
  const Json repeated = again.make(ask("What is my name?", first));
  EXPECT_EQ(text_of(repeated), text_of(second));
  EXPECT_EQ(cached(repeated), cached(second));
  EXPECT_EQ(again.responses->remove(first.at("id")).at("deleted"), true);
  EXPECT_THROW(again.responses->get(first.at("id")), WireError);
  EXPECT_THROW(again.make(ask("x", first)), WireError);
}

TEST(Responses, DamagedStoredStatesAreRefused) {
  const TemporaryDirectory folder;
  Service service(folder.path());
  const Json first = service.make(ask("My name is Anna."));
  const std::string path = folder.path() + "/" + first.at("id").get<std::string>() + ".safetensors";
  const std::string bytes = read_file(path);
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 97 + 1) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write_file(path, damaged);
    EXPECT_THROW(service.responses->get(first.at("id")), Failure) << at;
    write_file(path, bytes.substr(0, at));
    EXPECT_THROW(service.responses->get(first.at("id")), Failure) << at;
  }
  EXPECT_THROW(service.responses->get("resp_../../etc/passwd"), WireError);
}

TEST(Responses, AFolderKeepsWithinItsBytes) {
  const TemporaryDirectory folder;
  Service service(folder.path());
  const Json one = service.make(ask("One."));
  const auto size = static_cast<int64_t>(
      std::filesystem::file_size(folder.path() + "/" + one.at("id").get<std::string>() + ".safetensors"));
  service.responses =
      std::make_unique<Responses>(*service.engine, WireLimits{},
                                  open_store({.place = folder.path(), .bytes = 2 * size + size / 2}, *service.engine));
  Json last;
  for (int i = 0; i < 4; ++i) last = service.make(ask("More."));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
  EXPECT_EQ(service.responses->get(last.at("id")).at("id"), last.at("id"));
}

TEST(Responses, MemoryKeepsWithinItsBytes) {
  Service service;
  service.responses = std::make_unique<Responses>(*service.engine, WireLimits{},
                                                  open_store({.place = "", .bytes = 6000}, *service.engine));
  std::vector<Json> all;
  for (int i = 0; i < 20; ++i) all.push_back(service.make(ask("More.")));
  EXPECT_THROW(service.responses->get(all.front().at("id")), WireError);
  EXPECT_EQ(service.responses->get(all.back().at("id")).at("id"), all.back().at("id"));
}

TEST(Responses, WhatFailsIsKeptAsFailed) {
  Service service;
  const at::NoGradGuard no_grad;
  for (auto& parameter : service.engine->models()[0].model->parameters()) parameter.fill_(std::nanf(""));
  Json body = ask("Hello.");
  body["background"] = true;
  const auto made = service.responses->create(body);
  EXPECT_THROW(made->make([](const Json&) { return true; }), Failure);
  EXPECT_EQ(service.responses->get(made->id()).at("status"), "failed");
  EXPECT_THROW(service.make(ask("And now?", made->object())), WireError);
}

// One run under two names, for example in two formats. Each conversation continues with its own.
TEST(Responses, TwoNamesOfOneRunAreTwoModels) {
  const TemporaryDirectory folder;
  Service service;
  auto models = service.engine->models();
  models.push_back(models[0]);
  models[1].name = "other";
  Engine both(models, {});
  Responses responses(both, {}, open_store({.place = folder.path()}, both));
  Json body = ask("My name is Anna.");
  body["model"] = "other";
  const auto first = responses.create(body);
  EXPECT_TRUE(first->make([](const Json&) { return true; }));
  body["previous_response_id"] = first->id();
  EXPECT_TRUE(responses.create(body)->make([](const Json&) { return true; }));
  body["model"] = models[0].name;
  EXPECT_THROW(responses.create(body), WireError);
}

TEST(Responses, WhatIsForgottenIsNotKept) {
  Service service;
  const auto made = service.responses->create(ask("Hello."));
  EXPECT_EQ(service.responses->remove(made->id()).at("deleted"), true);
  made->make([](const Json&) { return true; });
  EXPECT_THROW(service.responses->get(made->id()).at("id"), WireError);
}

TEST(Responses, EventsSayWhatTheObjectSays) {
  Service service;
  Json body = ask("Tell me.");
  body["stream"] = true;
  std::vector<std::string> types;
  std::string text;
  Json last;
  const auto made = service.responses->create(body);
  EXPECT_TRUE(made->make([&](const Json& event) {
    if (event.is_null()) return true;
    EXPECT_EQ(event.at("sequence_number"), types.size());
    types.push_back(event.at("type"));
    if (types.back() == "response.output_text.delta") text += event.at("delta");
    last = event;
    return true;
  }));
  EXPECT_EQ(types.front(), "response.created");
  EXPECT_EQ(types.back(), "response.incomplete");
  EXPECT_EQ(text, text_of(last.at("response")));
  EXPECT_EQ(last.at("response"), made->object());
}

TEST(Responses, BackgroundOnesCanBeCancelled) {
  Service service;
  Json body = ask("Tell me.");
  body["background"] = true;
  body["max_output_tokens"] = 4000;
  body["logit_bias"] = {{"0", -100}};
  const auto made = service.responses->create(body);
  service.responses->run_in_background(made);
  EXPECT_EQ(service.responses->get(made->id()).at("status"), "in_progress");
  EXPECT_EQ(service.responses->cancel(made->id()).at("status"), "cancelled");
  EXPECT_TRUE(service.engine->drain(10));
  EXPECT_EQ(service.responses->get(made->id()).at("status"), "cancelled");
}

TEST(Responses, RefusesWhatItDoesNotDo) {
  Service service;
  const auto param = [&](const Json& more) {
    Json body = ask("x");
    body.update(more);
    try {
      service.responses->create(body);
    } catch (const WireError& error) {
      return error.body().at("error").at("param").get<std::string>();
    }
    return std::string("taken");
  };
  EXPECT_EQ(param({{"tools", {{{"type", "web_search"}}}}}), "tools");
  EXPECT_EQ(param({{"previous_response_id", "resp_nothing"}}), "previous_response_id");
  EXPECT_EQ(param({{"text", {{"format", {{"type", "json_schema"}}}}}}), "text.format.name");
  EXPECT_EQ(param({{"input", 3}}), "input");
  EXPECT_EQ(param({{"max_output_tokens", 0}}), "max_output_tokens");
  EXPECT_EQ(param({{"truncation", "sometimes"}}), "truncation");
  EXPECT_EQ(param({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}),
            "input[0].content[0].type");
}

TEST(Responses, InputItemsArePages) {
  Service service;
  Json body = ask("");
  body["input"] = Json::array();
  for (int i = 0; i < 3; ++i)
    body["input"].push_back({{"role", i == 1 ? "assistant" : "user"}, {"content", std::to_string(i)}});
  const Json made = service.make(body);
  const std::string id = made.at("id");
  const Json page = service.responses->input_items(id, "2", "asc", "");
  EXPECT_EQ(page.at("data").size(), 2u);
  EXPECT_EQ(page.at("has_more"), true);
  EXPECT_EQ(page.at("data")[0].at("content")[0].at("text"), "0");
  const Json rest = service.responses->input_items(id, "", "asc", page.at("last_id"));
  ASSERT_EQ(rest.at("data").size(), 1u);
  EXPECT_EQ(rest.at("data")[0].at("content")[0].at("text"), "2");
  EXPECT_THROW(service.responses->input_items(id, "0", "", ""), WireError);
}

}  // namespace
}  // namespace cortado
