#include "cortado/serve/inspect.h"

#include <gtest/gtest.h>

#include <thread>

#include "cortado/testing/serving.h"

namespace cortado {
namespace {

using testing::chatty_engine;

Json inspected(Inspector& inspector, const std::string& body) { return inspector.inspect(parse_json(body, "test")); }

// Returns the status and the field of a refusal: "400 heads".
std::string refusal(Inspector& inspector, const std::string& body) {
  return testing::refusal_of([&] { inspected(inspector, body); });
}

TEST(Inspect, RefusesWhatIsWrongByItsName) {
  const auto engine = chatty_engine();
  Inspector inspector(*engine, {});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({})", "400 prompt"},
      {R"({"prompt": "a", "messages": [{"role": "user", "content": "a"}]})", "400 prompt"},
      {R"({"prompt": ["a", "b"]})", "400 prompt"},
      {R"({"prompt": [256]})", "400 prompt"},
      {R"({"prompt": ""})", "400 prompt"},
      {R"({"messages": []})", "400 messages"},
      {R"({"prompt": "a", "model": "other"})", "404 model"},
      {R"({"prompt": "a", "layers": 0})", "400 layers"},
      {R"({"prompt": "a", "layers": []})", "400 layers"},
      {R"({"prompt": "a", "layers": [2]})", "400 layers"},
      {R"({"prompt": "a", "heads": [-1]})", "400 heads"},
      {R"({"prompt": "a", "heads": [4]})", "400 heads"},
      {R"({"prompt": "a", "heads": ["0"]})", "400 heads"},
      {R"({"prompt": "a", "parts": ["wieghts"]})", "400 parts"},
      {R"({"prompt": "a", "head": [0]})", "400 head"},
      {R"({"prompt": "a", "add_special_tokens": 1})", "400 add_special_tokens"},
  };
  for (const auto& [body, wanted] : cases) EXPECT_EQ(refusal(inspector, body), wanted) << body;
  EXPECT_EQ(refusal(inspector, Json{{"prompt", std::string(513, 'a')}}.dump()), "400 prompt");
  EXPECT_EQ(refusal(inspector, Json{{"prompt", std::string(512, 'a')}, {"heads", {0}}}.dump()), "taken");
  Inspector small(*engine, {}, {.numbers = 100});
  EXPECT_EQ(refusal(small, R"({"prompt": "abcdefgh"})"), "400 heads");  // four heads with 36 pairs each
  EXPECT_EQ(refusal(small, R"({"prompt": "abcdefgh", "heads": [1], "parts": ["weights"]})"), "taken");
}

// Every mechanism gives its weights or reports that it has none; mechanisms with attention weights give these.
TEST(Inspect, EveryMechanism) {
  for (const std::string& mixer : testing::causal_mixers()) {
    SCOPED_TRACE(mixer);
    const auto engine = chatty_engine({}, mixer);
    Inspector inspector(*engine, {});
    const Json answer = inspected(inspector, R"({"prompt": "abcdefghi", "layers": [1, 0]})");
    EXPECT_EQ(answer.at("tokens").size(), 9u);
    EXPECT_EQ(answer.at("pieces").at(2), "c");
    EXPECT_EQ(answer.at("model_layers").size(), 2u);
    ASSERT_EQ(answer.at("layers").size(), 2u);
    const Json& layer = answer.at("layers").at(1);
    EXPECT_EQ(layer.at("layer"), 1);
    EXPECT_EQ(layer.at("heads").size(), layer.at("head_count"));
    for (const Json& head : layer.at("heads")) {
      EXPECT_NE(head.contains("weights"), layer.contains("no_weights"));
      if (head.contains("weights")) {
        ASSERT_EQ(head.at("weights").size(), 9u);
        for (size_t t = 0; t < 9; ++t) EXPECT_EQ(head.at("weights").at(t).size(), t + 1);
      }
      EXPECT_EQ(head.contains("places"), layer.contains("memories"));
    }
  }
}

TEST(Inspect, WhatEachPartHas) {
  const auto head = [](const std::string& mixer) {
    const auto engine = chatty_engine({}, mixer);
    Inspector inspector(*engine, {});
    return inspected(inspector, R"({"prompt": "abcdefgh", "heads": [2]})").at("layers").at(0).at("heads").at(0);
  };
  const Json softmax = head(R"({"mixer": "softmax"})");
  EXPECT_EQ(softmax.at("head"), 2);
  double sum = 0;
  for (const Json& weight : softmax.at("weights").at(7)) sum += weight.get<double>();
  EXPECT_NEAR(sum, 1, 1e-3);
  EXPECT_EQ(head(R"({"mixer": "sliding_window", "window": 2})").at("places").at(3), "--00");
  if (testing::is_registered("lola")) {
    const Json lola = head(R"({"mixer": "lola", "chunk": 2, "cache": 1})");
    EXPECT_EQ(lola.at("places").at(3), "0000");
    EXPECT_EQ(lola.at("places").at(7).get<std::string>().substr(4), "0000");
    ASSERT_EQ(lola.at("decisions").size(), 2u);
    const Json& first = lola.at("decisions").at(0);
    EXPECT_EQ(first.at("before"), 4);
    EXPECT_EQ(first.at("tokens"), Json({0, 1}));
    EXPECT_NE(first.at("stays").at(0), first.at("stays").at(1));
    const bool older = first.at("stays").at(0).get<bool>();
    EXPECT_EQ(older, first.at("scores").at(0).get<double>() >= first.at("scores").at(1).get<double>());
  }
  if (testing::is_registered("macchiato")) {
    const Json latents = head(R"({"mixer": "macchiato", "window": 3, "latents": 8})").at("latents");
    EXPECT_TRUE(latents.at("window").get<bool>());
    ASSERT_EQ(latents.at("p").at(0).size(), 3u);  // two latents per head, and the window
    double whole = 0;
    for (const Json& p : latents.at("p").at(5)) whole += p.get<double>();
    EXPECT_NEAR(whole, 1, 1e-3);
  }
  if (testing::is_registered("gla")) {
    EXPECT_EQ(head(R"({"mixer": "gla"})").at("gates").at("norm").size(), 8u);
  }
  if (testing::is_registered("gated_slot")) {
    const Json slots = head(R"({"mixer": "gated_slot", "slots": 3})").at("slots");
    EXPECT_EQ(slots.at("write").at(7).size(), 3u);
    EXPECT_EQ(slots.at("contents").size(), 3u);
  }
}

// Narrow weights have no derivatives, so a copy is inspected.
TEST(Inspect, NarrowWeights) {
  for (const auto format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto model = testing::byte_model(R"({"mixer": "softmax"})");
    model->set_weight_format(format);
    Engine engine({{.name = "it", .model = model, .tokenizer = std::make_shared<testing::ChattyBytes>()}}, {});
    Inspector inspector(engine, {});
    const Json answer = inspected(inspector, R"({"messages": [{"role": "user", "content": "hi"}], "layers": [1]})");
    EXPECT_TRUE(answer.at("layers").at(0).at("heads").at(0).contains("weights"));
    EXPECT_TRUE(answer.at("layers").at(0).at("same_for_channels").get<bool>());
  }
}

// One inspection at a time; answers generated beside it do not change.
TEST(Inspect, BesideAnswers) {
  const auto engine = chatty_engine();
  Inspector inspector(*engine, {});
  const auto written = [&] {
    Request request;
    request.tokens = {65, 66, 67};
    request.sampling.seed = 3;
    request.most_tokens = 60;
    const auto answer = engine->ask(request);
    AnswerPart part;
    while (answer->next(part, std::chrono::seconds(30)) == Answer::Got::kPart) continue;
    return answer->written(0).tokens;
  };
  const auto alone = written();
  std::atomic<bool> over = false;
  std::atomic<int> done = 0, busy = 0;
  const Json body = {{"prompt", std::string(200, 'a')}, {"layers", {0, 1}}};
  std::vector<std::thread> looking;
  for (int i = 0; i < 2; ++i) {
    looking.emplace_back([&] {
      while (!over) {
        try {
          inspector.inspect(body);
          ++done;
        } catch (const Busy&) {
          ++busy;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    });
  }
  while (done == 0 || busy == 0) EXPECT_EQ(written(), alone);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(written(), alone);
  over = true;
  for (auto& thread : looking) thread.join();
}

}  // namespace
}  // namespace cortado
