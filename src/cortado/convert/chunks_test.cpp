// The training data of conversions, from texts and from instructions.
#include "cortado/convert/chunks.h"

#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/convert/objective.h"
#include "cortado/convert/stage.h"
#include "cortado/models/checkpoint.h"
#include "cortado/testing/conversions.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using namespace testing::conversions;

const Instruction kShort{"Name a drink.", "", "Tea."};
const Instruction kLong{"Repeat it.", "milk and coffee", "milk and coffee, as you asked"};

// A tokenizer of bytes with an end-of-text token.
class Bytes : public Tokenizer {
 public:
  Bytes() { special_.end = 0; }
  std::string kind() const override { return "byte"; }
  int64_t vocabulary() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  std::string decode(const std::vector<int32_t>& tokens) const override { return {tokens.begin(), tokens.end()}; }
  const SpecialTokens& special() const override { return special_; }
  void save(const std::string&) const override {}

 private:
  SpecialTokens special_;
};

std::string text_of(const Tensor& tokens) {
  std::string text;
  for (int64_t i = 0; i < tokens.numel(); ++i) text += static_cast<char>(tokens.flatten()[i].item<int64_t>());
  return text;
}

TEST(InstructionsTest, PromptIsAlpacas) {
  EXPECT_EQ(kShort.prompt(),
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nName a drink.\n\n### Response:\n");
  EXPECT_EQ(kLong.prompt(),
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nRepeat it.\n\n### Input:\nmilk "
            "and coffee\n\n### Response:\n");
}

// Only answers and their end marks are targets. The training chunks begin after the examples for evaluation.
TEST(InstructionsTest, ChunksHoldTheAnswersAsTargets) {
  const std::vector<Instruction> examples = {kShort, kLong, kShort, kShort};
  const int64_t length = 50;
  const Chunks chunks(examples, Bytes(), length, 2, 1);
  std::string texts[2], counted[2];  // [0] for evaluation, [1] for training
  for (size_t i = 0; i < 4; ++i) {
    const std::string answer = examples[i].output + '\0';
    texts[i / 2] += examples[i].prompt() + answer;
    counted[i / 2] += std::string(examples[i].prompt().size(), '-') + answer;
  }
  const auto expect_chunk = [&](const Sequences& chunk, size_t part, size_t& place) {
    const auto plain = [&] { return counted[part].substr(place + 1, length - 1) == std::string(length - 1, '-'); };
    while (plain()) place += length;  // no target in this chunk
    EXPECT_EQ(text_of(chunk.tokens), texts[part].substr(place, length));
    std::string targets;
    for (int64_t t = 0; t < length; ++t) {
      const auto target = chunk.targets[0][t].item<int64_t>();
      targets += target < 0 ? '-' : static_cast<char>(target);
    }
    EXPECT_EQ(targets, counted[part].substr(place + 1, length - 1) + "-");
    place += length;
  };
  size_t place = 0;
  ASSERT_EQ(chunks.held_out(), 2);
  for (int64_t i = 0; i < chunks.held_out(); ++i) expect_chunk(chunks.held_out_chunk(i), 0, place);
  ASSERT_EQ(chunks.training(), 1);
  place = 0;
  expect_chunk(chunks.batch(0, 1), 1, place);
  EXPECT_NE(testing::error_of([&] { Chunks(examples, Bytes(), 4000, 2, 1); }).find("too few"), std::string::npos);
  EXPECT_NE(testing::error_of([&] { Chunks(examples, Bytes(), length, 4, 1); }).find("too few"), std::string::npos);
}

TEST(InstructionsTest, ReadsListsAndLines) {
  TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.json";
  const auto read = [&](const std::string& text) {
    write_file(path, text);
    return read_instructions(path);
  };
  for (const char* text : {R"([{"instruction": "a", "input": "", "output": "b", "text": 3}, {"instruction": "c",
                               "input": "d", "output": "e"}])",
                           "{\"instruction\": \"a\", \"output\": \"b\"}\n\n"
                           "{\"instruction\": \"c\", \"input\": \"d\", \"output\": \"e\"}\n"}) {
    const auto found = read(text);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].instruction + found[0].input + found[0].output, "ab");
    EXPECT_EQ(found[1].instruction + found[1].input + found[1].output, "cde");
  }
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "has no examples"},
           {"[]", "has no examples"},
           {"[3]", "example 1] is not an object"},
           {R"([{"instruction": "a", "output": "b"}, {"instruction": "a"}])", "example 2] has no \"output\""},
           {R"([{"output": "b"}])", "has no \"instruction\""},
           {R"([{"instruction": ["a"], "output": "b"}])", "\"instruction\" is not a text"},
           {"[{\"instruction\": \"a\"", "a.json"},
           {"{\"instruction\": \"a\", \"output\": \"b\"}\n{", "a.json:2"}}) {
    const std::string error = testing::error_of([&] { read(text); });
    EXPECT_NE(error.find(why), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

// Chunks hold few to many answers. Accumulating two batches of one chunk equals one batch of two, in training and in
// evaluation.
TEST_F(ConversionTest, AccumulatedChunksAreOneBatch) {
  const std::vector<Instruction> examples = {kShort, kLong, kLong, kShort, kShort, kLong, kShort, kLong, kLong, kShort};
  const auto chunks = std::make_shared<const Chunks>(examples, Bytes(), 40, 3, 1);
  const std::string run = make_run(small_config(kGrouped));
  const auto logged = [&](int64_t batch, int64_t accumulate) {
    const std::shared_ptr<LanguageModel> model = open_model(run);
    const auto objective = std::make_shared<NextToken>(model, parameters_of(*model));
    Stage stage(
        "next token", objective, chunks,
        {.batch = batch, .accumulate = accumulate, .tokens = 40 * 4, .evaluate_every = 1, .learning_rate = 1e-3});
    std::vector<double> numbers;
    RunKeeper keeper{"",
                     [&](const Json& line) {
                       for (const char* key : {"loss", "gradient_norm", "evaluation_loss"}) {
                         if (line.contains(key)) numbers.push_back(line[key]);
                       }
                     },
                     [](const Validation&, bool) {}, [] {}};
    RunControl quiet;
    quiet.progress = false;
    EXPECT_TRUE(stage.run(keeper, quiet));
    // By hand: the mean over all held-out answers.
    double sum = 0, count = 0;
    const auto fresh = open_model(run);
    NextToken measured(fresh, parameters_of(*fresh));
    for (int64_t i = 0; i < chunks->held_out(); ++i) {
      const Sequences chunk = chunks->held_out_chunk(i);
      sum += measured.losses(chunk, 0).at(0) * measured.terms(chunk);
      count += measured.terms(chunk);
    }
    EXPECT_NEAR(numbers.at(0), sum / count, 1e-5);
    return numbers;
  };
  const auto whole = logged(4, 1);
  ASSERT_EQ(whole.size(), 4u);
  for (const auto& [batch, accumulate] : {std::pair(1, 4), std::pair(2, 2)}) {
    const auto parts = logged(batch, accumulate);
    ASSERT_EQ(parts.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-6 * std::max(1.0, whole[i])) << i;
  }
}

// The next-token loss and its gradients are means over the answers only.
TEST_F(ConversionTest, AnswersAloneAreLearned) {
  const auto model = open_model(make_run(small_config(kGrouped)));
  const Chunks chunks({kShort, kLong, kShort, kLong}, Bytes(), 64, 2, 1);
  const Sequences batch = chunks.batch(0, 1);
  const Tensor weight = model->named_parameters()["layers.1.mixer.q.weight"];
  NextToken objective(model, {{"layers.1.mixer.q.weight", weight, Role::kMatrix}});
  const double loss = objective.losses(batch, 1).at(0);
  const Tensor gradient = weight.grad().clone();
  Tensor sum = at::zeros({});
  int64_t count = 0;
  const Tensor log_p = at::log_softmax(model->forward(batch.tokens), -1);
  for (int64_t t = 0; t < 64; ++t) {
    const auto target = batch.targets[0][t].item<int64_t>();
    if (target < 0) continue;
    sum = sum - log_p[0][t][target];
    ++count;
  }
  ASSERT_GT(count, 0);
  ASSERT_LT(count, 63);
  EXPECT_NEAR(loss, (sum / count).item<double>(), 1e-5);
  weight.mutable_grad().zero_();
  (sum / count).backward();
  EXPECT_CLOSE(gradient, weight.grad(), 1e-5);
}

// A sequence read in pieces has the loss of the whole sequence. The queries of the last layer, which later tokens do
// not see, have equal gradients too; the first layer's values, which states carry on, do not.
TEST_F(ConversionTest, PiecesAreTheSequenceWithoutGradientsBetweenThem) {
  const Tensor tokens = some_tokens(2, 64);
  Sequences batch{tokens, tokens.roll(-1, 1)};
  batch.targets.narrow(1, 0, 30).narrow(0, 0, 1).fill_(-1);  // the first piece has fewer targets
  std::vector<std::string> mixers{kGrouped};
  if (testing::is_registered("macchiato"))
    mixers.push_back(R"({"mixer": "macchiato", "window": 5, "source": "x", "latents": 8, "cache": 6, "chunk": 4})");
  for (const std::string& mixer : mixers) {
    SCOPED_TRACE(mixer);
    const auto model = open_model(make_run(small_config(mixer.c_str())));
    const std::string own = model->named_parameters().contains("layers.2.mixer.window_q.weight") ? "window_" : "";
    const auto learned = [&](int64_t bptt) {
      const std::string last = concat("layers.2.mixer.", own, "q.weight"), first = "layers.0.mixer.v.weight";
      Parameters parameters;
      for (const std::string& name : {last, first}) {
        parameters.push_back({name, model->named_parameters()[name], Role::kMatrix});
        Tensor(parameters.back().value).mutable_grad() = Tensor();
      }
      NextToken objective(model, parameters, bptt);
      const double loss = objective.losses(batch, 1).at(0);
      EXPECT_NEAR(objective.losses(batch, 0).at(0), loss, 1e-5);
      return std::tuple(loss, parameters[0].value.grad(), parameters[1].value.grad());
    };
    const auto [loss, last, first] = learned(0);
    const auto [same_loss, same_last, same_first] = learned(64);
    EXPECT_TRUE(same_loss == loss && same_last.equal(last) && same_first.equal(first));
    for (const int64_t bptt : {1, 24, 60}) {
      const auto [piece_loss, piece_last, piece_first] = learned(bptt);
      EXPECT_NEAR(piece_loss, loss, 1e-5) << bptt;
      EXPECT_CLOSE(piece_last, last, 1e-4) << bptt;
      EXPECT_GT(testing::relative_error(piece_first, first), 1e-3) << bptt;
    }
  }
}

// Both stages on instructions, stopped and resumed, equal the uninterrupted conversion.
TEST_F(ConversionTest, InstructionsTeachAConversion) {
  Json examples = Json::array();
  for (int i = 0; i < 30; ++i) {
    examples.push_back({{"instruction", "Say " + std::to_string(i)}, {"output", "It is " + std::to_string(i)}});
  }
  write_file(path("instructions.json"), examples.dump());
  const std::string run = make_run(small_config(kGrouped));
  const auto wanted = [&](const std::string& out) {
    LinearizeRequest conversion = request(run, out);
    conversion.plan.data = {};
    conversion.plan.instructions = path("instructions.json");
    conversion.plan.evaluation_examples = 5;
    conversion.plan.lora = conversion.plan.transfer;
    conversion.plan.lora.tokens = 5 * 64;
    conversion.plan.lora.learning_rate = 1e-3;
    return conversion;
  };
  const auto result = linearize(wanted("whole"));
  ASSERT_EQ(result.stages.size(), 2u);
  EXPECT_LT(result.stages[0].total_after, result.stages[0].total_before);
  EXPECT_LT(result.stages[1].total_after, result.stages[1].total_before);
  LinearizeRequest first = wanted("parts");
  first.stop_at = 12;
  EXPECT_FALSE(linearize(first).done);
  EXPECT_TRUE(linearize(resuming("parts")).done);
  expect_same_weights(path("parts/best.safetensors"), path("whole/best.safetensors"));
  LinearizeRequest both = wanted("both");
  both.plan.data = {path("text.txt")};
  EXPECT_NE(testing::error_of([&] { linearize(both); }).find("what to learn from?"), std::string::npos);
}

}  // namespace
}  // namespace cortado
