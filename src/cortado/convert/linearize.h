// A whole conversion from its description: model, text, folder, stages. Implements `cortado linearize`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cortado/convert/cache.h"
#include "cortado/convert/settings.h"
#include "cortado/convert/stage.h"
#include "cortado/nn/lora.h"
#include "cortado/train/run_folder.h"

namespace cortado {

// Everything that decides the result. Kept in DIR/linearize.json for --resume.
struct LinearizePlan {
  std::string source;  // a run with softmax layers; --resume reads the frozen weights from it too
  std::string which = "best";
  std::string fingerprint = {};  // of the source's weights; "": not read yet
  std::string from = {};         // a learned.safetensors to begin with, whose conversion becomes this one's
  ConversionSettings conversion;
  std::vector<std::string> data;      // text files; or instructions
  std::string instructions = {};      // a file of instructions (data/instructions.h), of which the answers are learned
  int64_t context = 1024;             // tokens per chunk
  int64_t evaluation_chunks = 16;     // the first chunks of the text
  int64_t evaluation_examples = 200;  // the first examples of the instructions
  int64_t seed = 1337;
  int64_t cache_tokens = 150'000;  // of text, to learn a cache's scores (convert/cache.h)
  bool cache_again = false;        // learn the scores again even if `from` has them
  int64_t sink_tokens = 50'000;    // of text, to settle the latents' sinks (convert/sinks.h); 0: skip it
  int64_t bptt = 0;                // tokens that the next-token gradient flows back through; 0: the whole sequence
  std::string dtype = "float32";   // of the frozen weights in training
  std::string weights = "plain";   // format of the layers' frozen matrices in attention transfer: plain, int8
  // A stage of 0 tokens is skipped; a negative number means two epochs of the text.
  StageOptions transfer;       // attention transfer
  StageOptions cross_entropy;  // trains the mixers' new parameters by next-token prediction
  StageOptions lora;           // trains adapters by next-token prediction; everything else is frozen
  LoraOptions adapters;

  void fields(JsonFields& json);
};

struct LinearizeRequest {
  LinearizePlan plan;  // with kResume, the folder's own plan is used instead
  std::string out;
  FolderUse use = FolderUse::kFresh;
  at::Device device = at::kCPU;
  int64_t stop_at = -1;  // stop after this step, counted over all stages, as Ctrl-C would
  std::function<bool()> stop;
  bool progress = true;
};

// The result of a stage.
struct StageReport {
  struct Loss {  // of one part (a layer), on the evaluation chunks
    std::string part;
    double before = 0, after = 0;
  };
  std::string name;
  std::vector<Loss> losses;
  double total_before = 0, total_after = 0;
  int64_t steps = 0, best_step = 0, tokens = 0;
  double seconds = 0;

  void fields(JsonFields& json);
};

struct LinearizeResult {
  bool done = false;  // false: stopped; --resume continues
  int64_t step = 0, steps = 0;
  std::vector<StageReport> stages;
  std::optional<CacheReport> cache = {};
  std::optional<int64_t> sinks = {};  // number of latents that hold a text's first token alone (convert/sinks.h)
};

// Afterwards DIR is a run: config.json, tokenizer/, best.safetensors, last.safetensors, and linearize.json,
// metrics.jsonl, report.json, report.svg. Adapters are merged into the weights and also saved as lora.safetensors; all
// learned weights are also saved as learned.safetensors. Throws InputError if model, text or folder are wrong; the
// folder is untouched then.
LinearizeResult linearize(const LinearizeRequest& request);

}  // namespace cortado
