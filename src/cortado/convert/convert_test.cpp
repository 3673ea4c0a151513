// Conversions: the loop, exact resumption, and refusals, tested with LoLCATs.
#include <gtest/gtest.h>

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/convert/linearize.h"
#include "cortado/convert/weights.h"
#include "cortado/evaluate/evaluate.h"
#include "cortado/models/checkpoint.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/conversions.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;
using namespace testing::conversions;

TEST_F(ConversionTest, TeacherForcingGivesTheSoftmaxModelsHiddenStates) {
  for (const char* mixer :
       {kGrouped,
        R"({"mixer": "softmax", "scale": 0.3, "softcap": 2.0, "rope_theta": 100, "rotary_fraction": 0.667})"}) {
    const std::string run = make_run(small_config(mixer));
    const auto teacher = open_model(run, {.dtype = at::kDouble});
    const auto student = convert(run, lolcats_settings(), {1});
    const Tensor tokens = some_tokens(2, 19);
    const auto right = forced_inputs(*teacher, tokens), forced = forced_inputs(*student, tokens);
    ASSERT_EQ(right.size(), forced.size());
    for (size_t layer = 0; layer < right.size(); ++layer) EXPECT_CLOSE(forced[layer], right[layer], 1e-12) << layer;
  }
}

// Until the first key leaves the window, the converted model equals the source model.
TEST_F(ConversionTest, WithinTheWindowNothingChanges) {
  const std::string run = make_run(small_config(kGrouped));
  const Tensor tokens = some_tokens(2, 7);
  const Tensor right = open_model(run, {.dtype = at::kDouble})->forward(tokens);
  EXPECT_CLOSE(convert(run, lolcats_settings(R"({"window": 7})"))->forward(tokens), right, 1e-12);
  EXPECT_CLOSE(convert(run, lolcats_settings(R"({"window": 4, "layout": "terrace"})"))->forward(tokens), right, 1e-12);
  EXPECT_GT(testing::relative_error(convert(run, lolcats_settings())->forward(tokens), right), 1e-3);
}

TEST_F(ConversionTest, LearnsAndLeavesARunThatOpens) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest wanted = request(run, "out");
  wanted.plan.transfer.tokens = 40 * 64;
  const auto result = linearize(wanted);
  EXPECT_TRUE(result.done);
  ASSERT_EQ(result.stages.size(), 1u);
  EXPECT_LT(result.stages[0].total_after, 0.7 * result.stages[0].total_before);
  EXPECT_EQ(result.stages[0].tokens, 40 * 64);

  const auto model = open_model(path("out"));
  const auto source = open_model(run);
  for (const auto& entry : source->named_parameters()) {
    EXPECT_TRUE(at::equal(model->named_parameters()[entry.key()], entry.value())) << entry.key();
  }
  EXPECT_FALSE(at::equal(model->named_parameters()["layers.1.mixer.phi_q.weight"], at::eye(8).repeat({4, 1, 1})));
  EXPECT_EQ(load_tokenizer(path("out/tokenizer"))->kind(), "byte");
  const Json report = read_json_file(path("out/report.json"));
  EXPECT_EQ(report["stages"][0]["losses"].size(), 3u);
  EXPECT_TRUE(read_file(path("out/report.svg")).starts_with("<svg"));

  // The loss in the report is the loss of the saved model.
  AttentionTransfer transfer(model, 1 << 20);
  const Chunks chunks(open_text_as_dataset({.files = {path("text.txt")}, .validation = 0, .progress = false}).train, 32,
                      3, 1337);
  double total = 0;
  for (int64_t i = 0; i < 3; ++i) total += transfer.total(transfer.losses(chunks.held_out_chunk(i), 0)) / 3;
  EXPECT_NEAR(total, result.stages[0].total_after, 1e-4 * total);
}

TEST_F(ConversionTest, ResumedEqualsUninterrupted) {
  const std::string run = make_run(small_config(kGrouped));
  linearize(request(run, "whole"));
  for (const int64_t stop : {0, 3, 4, 9}) {
    const std::string name = concat("stopped-", stop);
    LinearizeRequest first = request(run, name);
    first.stop_at = stop;
    int64_t asked = 0;
    if (stop == 0) first.stop = [&] { return ++asked == 2; };  // in the middle of the first evaluation
    EXPECT_FALSE(linearize(first).done);
    const auto result = linearize(resuming(name));
    EXPECT_TRUE(result.done);
    EXPECT_EQ(result.stages[0].steps, 10);
    expect_same_weights(path(name) + "/best.safetensors", path("whole/best.safetensors"));
    expect_same_weights(path(name) + "/trainer.safetensors", path("whole/trainer.safetensors"));
  }
}

TEST_F(ConversionTest, FrozenWeightsMayBeBfloat16) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest wanted = request(run, "out");
  wanted.plan.dtype = "bfloat16";
  const auto result = linearize(wanted);
  EXPECT_LT(result.stages[0].total_after, result.stages[0].total_before);
  // The saved weights are the original ones.
  const auto model = open_model(path("out")), source = open_model(run);
  EXPECT_TRUE(at::equal(model->named_parameters()["layers.1.mixer.q.weight"],
                        source->named_parameters()["layers.1.mixer.q.weight"]));
}

// Only in attention transfer; the next-token stages need gradients through them.
TEST_F(ConversionTest, FrozenMatricesMayBeInt8) {
  const std::string run = make_run(small_config(kGrouped));
  const auto wanted = [&](const std::string& out, const std::string& weights) {
    LinearizeRequest result = request(run, out);
    result.plan.weights = weights;
    result.plan.lora = result.plan.transfer;
    result.plan.lora.learning_rate = 3e-3;
    result.plan.adapters = {.rank = 2, .alpha = 4};
    return result;
  };
  const auto plain = linearize(wanted("plain", "plain")), narrow = linearize(wanted("narrow", "int8"));
  ASSERT_EQ(narrow.stages.size(), 2u);
  for (const auto loss : {&StageReport::total_before, &StageReport::total_after}) {
    EXPECT_NEAR(narrow.stages[0].*loss / (plain.stages[0].*loss), 1, 0.1);
    EXPECT_NE(narrow.stages[0].*loss, plain.stages[0].*loss);
    EXPECT_NEAR(narrow.stages[1].*loss / (plain.stages[1].*loss), 1, 0.01);
  }
  const auto model = open_model(path("narrow")), source = open_model(run);
  EXPECT_TRUE(at::equal(model->named_parameters()["layers.1.feed_forward.up.weight"],
                        source->named_parameters()["layers.1.feed_forward.up.weight"]));
  for (const int64_t stop : {5, 10, 13}) {
    LinearizeRequest first = wanted(concat("narrow-", stop), "int8");
    first.stop_at = stop;
    EXPECT_FALSE(linearize(first).done);
    EXPECT_TRUE(linearize(resuming(concat("narrow-", stop))).done);
    expect_same_weights(path(concat("narrow-", stop)) + "/best.safetensors", path("narrow/best.safetensors"));
  }
}

TEST_F(ConversionTest, LessonsAreTheMixersOwnOutputs) {
  const std::string run = make_run(small_config(kGrouped));
  for (const char* more : {"{}", R"({"layout": "terrace", "mixture": "gated"})"}) {
    expect_own_outputs_as_lessons(*convert(run, lolcats_settings(more)));
  }
}

TEST_F(ConversionTest, AdaptersAreTrainedLastAndMerged) {
  const std::string run = make_run(small_config(kGrouped));
  linearize(request(run, "transferred"));
  LinearizeRequest wanted = request(run, "tuned");
  wanted.plan.lora = wanted.plan.transfer;
  wanted.plan.lora.learning_rate = 3e-3;
  wanted.plan.adapters = {.rank = 2, .alpha = 4};
  const auto result = linearize(wanted);
  ASSERT_EQ(result.stages.size(), 2u);
  EXPECT_LT(result.stages[1].total_after, result.stages[1].total_before);

  const auto tuned = open_model(path("tuned")), apart = open_model(path("transferred"));
  const auto changed = tuned->named_parameters(), before = apart->named_parameters();
  EXPECT_TRUE(at::equal(changed["layers.0.mixer.phi_q.weight"], before["layers.0.mixer.phi_q.weight"]));
  EXPECT_FALSE(at::equal(changed["layers.0.mixer.q.weight"], before["layers.0.mixer.q.weight"]));
  EXPECT_EQ(load_lora(path("tuned/lora.safetensors"), *apart), wanted.plan.adapters);
  const Tensor tokens = some_tokens(2, 30);
  EXPECT_CLOSE(tuned->forward(tokens), apart->forward(tokens), 1e-5);

  LinearizeRequest first = wanted;
  first.out = path("stopped");
  first.stop_at = 13;
  EXPECT_FALSE(linearize(first).done);
  EXPECT_TRUE(linearize(resuming("stopped")).done);
  expect_same_weights(path("stopped/best.safetensors"), path("tuned/best.safetensors"));
}

// The small file alone turns the source into an equal model, up to its float16 rounding.
TEST_F(ConversionTest, WhatWasLearnedMakesTheSameModelAgain) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest wanted = request(run, "tuned");
  wanted.plan.lora = wanted.plan.transfer;
  wanted.plan.lora.learning_rate = 3e-3;
  wanted.plan.adapters = {.rank = 2, .alpha = 4};
  linearize(wanted);
  const std::string learned = path("tuned/learned.safetensors");
  apply_learned({run, "best", learned, path("again")});
  const Tensor tokens = some_tokens(2, 30);
  const Tensor right = open_model(path("tuned"))->forward(tokens);
  EXPECT_CLOSE(open_model(path("again"))->forward(tokens), right, 2e-3);
  EXPECT_GT(testing::relative_error(open_model(run)->forward(tokens), right), 1e-2);

  EXPECT_NE(testing::error_of([&] {
              apply_learned({run, "best", path("tuned/lora.safetensors"), path("no")});
            }).find("is no learned.safetensors"),
            std::string::npos);
  // Stages continue from it as from an earlier stage.
  linearize(request(run, "transferred"));
  LinearizeRequest further = wanted;
  further.out = path("further");
  further.plan.from = path("transferred/learned.safetensors");
  further.plan.transfer.tokens = 0;
  further.stop_at = 3;
  EXPECT_FALSE(linearize(further).done);
  EXPECT_TRUE(linearize(resuming("further")).done);
  EXPECT_CLOSE(open_model(path("further"))->forward(tokens), right, 5e-3);
  further = wanted;
  further.out = path("no");
  further.plan.from = learned;
  EXPECT_NE(testing::error_of([&] { linearize(further); }).find("has adapters"), std::string::npos);

  const auto refused = [&](const std::string& file, const std::string& why) {
    const std::string error = testing::error_of([&] { apply_learned({run, "best", file, path("no")}); });
    EXPECT_NE(error.find(why), std::string::npos) << error;
  };
  refused(path("tuned/lora.safetensors"), "is no learned.safetensors");
  for (const bool adapter : {false, true}) {
    Learned bent = load_learned(learned);
    (adapter ? bent.adapters : bent.weights)[0].second = at::zeros({2, 3});
    save_learned(path("bent.safetensors"), bent);
    refused(path("bent.safetensors"), "which the converted model does not");
  }
  Json other = small_config(kGrouped);
  other["initialization"] = {{"type", "normal"}, {"std", 0.3}};
  make_run(other);
  refused(learned, "on other weights");
  EXPECT_FALSE(fs::exists(path("no")));
}

TEST_F(ConversionTest, ConvertingTheRestKeepsWhatWasLearned) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest first = request(run, "half");
  first.plan.conversion.keep = {2};
  linearize(first);
  const ModelConfig half = read_config(path("half"));
  const ModelConfig config = converted_config(half, {lolcats_settings(), {}});
  const TensorFile weights = source_weights(path("half"), "best", half, config);
  const auto model = converted_model(config, weights, 1, at::kFloat);
  EXPECT_TRUE(at::equal(model->named_parameters()["layers.0.mixer.phi_q.weight"],
                        open_model(path("half"))->named_parameters()["layers.0.mixer.phi_q.weight"]));
}

TEST_F(ConversionTest, KeptLayersStay) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest wanted = request(run, "out");
  wanted.plan.conversion.keep = {0, 2};
  const auto result = linearize(wanted);
  ASSERT_EQ(result.stages[0].losses.size(), 1);
  EXPECT_EQ(result.stages[0].losses[0].part, "layer 1");
  const ModelConfig config = read_config(path("out"));
  EXPECT_EQ(config.layers[0]["mixer"], "softmax");
  EXPECT_EQ(config.layers[1]["mixer"], "lolcats");
  EXPECT_EQ(config.layers[2]["mixer"], "softmax");
}

TEST_F(ConversionTest, RefusesWhatCannotBeConverted) {
  const std::string run = make_run(small_config(kGrouped));
  const auto refused = [&](const LinearizeRequest& request, const std::string& why) {
    EXPECT_NE(testing::error_of([&] { linearize(request); }).find(why), std::string::npos)
        << testing::error_of([&] { linearize(request); });
    EXPECT_FALSE(fs::exists(request.out));
  };
  refused(request(make_run(small_config(R"({"mixer": "latte", "latents": 8})"), "latte"), "out"),
          "the model has no softmax layers");
  refused(request(make_run(small_config(R"({"mixer": "softmax", "taps": 3})"), "convolved"), "out"),
          "layer 0 has short convolutions (\"taps\": 3)");
  refused(request(path("nothing"), "out"), "there is no run");
  LinearizeRequest wrong = request(run, "out");
  wrong.plan.conversion.keep = {3};
  refused(wrong, "there is no layer 3");
  wrong.plan.conversion.keep = {0, 1, 2};
  refused(wrong, "every softmax layer is kept");
  wrong = request(run, "out");
  wrong.plan.data = {};
  refused(wrong, "what to learn from?");
  wrong.plan.data = {path("missing.txt")};
  refused(wrong, "missing.txt");
  wrong = request(run, "out");
  wrong.plan.context = 4000;
  refused(wrong, "the text has");
  refused(request(run, "out", lolcats_settings(R"({"window": 0})")), "window");
  wrong = request(run, "out", lolcats_settings(R"({"window": 40, "layout": "terrace"})"));
  refused(wrong, concat("sequences of ", wrong.plan.context, " tokens lie in the windows of all layers"));

  linearize(request(run, "out"));
  EXPECT_NE(testing::error_of([&] { linearize(request(run, "out")); }).find("already holds a run"), std::string::npos);
  EXPECT_NE(testing::error_of([&] { linearize(request(path("out"), "again")); }).find("no softmax layers"),
            std::string::npos);
  EXPECT_NE(testing::error_of([&] { linearize(resuming("again")); }).find("holds no conversion"), std::string::npos);
  make_run(small_config(kGrouped));  // equal weights again are accepted
  EXPECT_TRUE(linearize(resuming("out")).done);
  Json other = small_config(kGrouped);
  other["initialization"] = {{"type", "normal"}, {"std", 0.3}};
  make_run(other);
  EXPECT_NE(testing::error_of([&] { linearize(resuming("out")); }).find("has other weights"), std::string::npos);
}

}  // namespace
}  // namespace cortado
