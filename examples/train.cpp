// Trains a small Latte model on a text:  example_train TEXT RUN [STEPS]
// RUN is then a folder that `example_generate`, `cortado generate` and `cortado eval` read.
#include <ATen/Functions.h>

#include <cstdio>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/models/checkpoint.h"
#include "cortado/tokenizers/tokenizer.h"
#include "cortado/train/optimizer.h"

int main(int argc, char** argv) try {
  using namespace cortado;
  if (argc < 3) throw InputError("usage: example_train TEXT RUN [STEPS]");
  const std::string text = argv[1], run = argv[2];
  const int64_t steps = argc > 3 ? std::stoll(argv[3]) : 500, batch = 8, context = 128;

  claim_output_directory(run, /*refuse_used=*/true);
  const auto tokenizer = make_tokenizer("char", {text});
  const at::Tensor tokens = at::tensor(tokenizer->encode(read_file(text)), at::kLong);

  Json settings = parse_json(R"({"name": "example", "dim": 96, "heads": 4, "layers": 3,
      "mixer": {"mixer": "latte", "latents": 32}})",
                             "train.cpp");
  settings["vocabulary"] = tokenizer->vocabulary();
  LanguageModel model(ModelConfig::from_json(settings, "train.cpp"));
  AdamW optimizer(trainable(model), TrainingOptions{});

  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor starts = at::randint(tokens.size(0) - context, {batch, 1}, at::kLong);
    const at::Tensor crops = tokens.index({starts + at::arange(context + 1)});  // [batch, context + 1]
    const at::Tensor loss = model.loss(crops.slice(1, 0, -1), crops.slice(1, 1), {.training = true});
    loss.backward();
    optimizer.step(1e-3, clip_divisor(optimizer.gradient_norm(), 1.0));
    optimizer.clear_gradients();
    if (step % 50 == 0 || step == steps) std::printf("step %5ld  loss %.3f\n", step, loss.item<double>());
  }

  write_file(run + "/config.json", model.config().to_json().dump(2));
  tokenizer->save(run + "/tokenizer");
  save_weights(model, run + "/last.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
