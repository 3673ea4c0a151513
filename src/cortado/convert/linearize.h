// A conversion from its description: model, text, folder, stages. What `cortado linearize` does.
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

// Everything that decides what comes out, kept in DIR/linearize.json for --resume.
struct LinearizePlan {
  std::string source;  // a run with softmax layers: what is frozen is read from it, also by --resume
  std::string which = "best";
  std::string fingerprint = {};  // of its weights; "": not looked at yet
  std::string from = {};         // a learned.safetensors to begin with; its conversion is then this one's
  ConversionSettings conversion;
  std::vector<std::string> data;      // text files, or
  std::string instructions = {};      // a file of instructions (data/instructions.h), whose answers are learned
  int64_t context = 1024;             // tokens of a chunk
  int64_t evaluation_chunks = 16;     // the first ones of the text
  int64_t evaluation_examples = 200;  // the first ones of the instructions
  int64_t seed = 1337;
  int64_t cache_tokens = 150'000;  // of text that a cache's score is learned from (convert/cache.h)
  bool cache_again = false;        // learn them anew where the file of `from` has them
  int64_t sink_tokens = 50'000;    // of text that latents' sinks are settled by (convert/sinks.h); 0: they are left
  int64_t bptt = 0;                // tokens that the next token's gradient flows back through; 0: the sequence
  std::string dtype = "float32";   // of the frozen weights while training
  std::string weights = "plain";   // what attention transfer keeps the layers' frozen matrices in: plain, int8
  // Stages of 0 tokens are left out; less than 0: two epochs of the text.
  StageOptions transfer;       // attention transfer
  StageOptions cross_entropy;  // what the mixers learn, further, by the next token
  StageOptions lora;           // adapters, by the next token; everything else is frozen
  LoraOptions adapters;

  void fields(JsonFields& json);
};

struct LinearizeRequest {
  LinearizePlan plan;  // with kResume: the folder's own is taken instead
  std::string out;
  FolderUse use = FolderUse::kFresh;
  at::Device device = at::kCPU;
  int64_t stop_at = -1;  // stop after this step (of all stages together) as Ctrl-C would
  std::function<bool()> stop;
  bool progress = true;
};

// What a stage came to.
struct StageReport {
  struct Loss {  // of a part, on the evaluation chunks
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
  bool done = false;  // false: stopped, and --resume goes on
  int64_t step = 0, steps = 0;
  std::vector<StageReport> stages;
  std::optional<CacheReport> cache = {};
  std::optional<int64_t> sinks = {};  // latents in which a text's first token stands alone (convert/sinks.h)
};

// DIR then is a run: config.json, tokenizer/, best.safetensors, last.safetensors, and linearize.json, metrics.jsonl,
// report.json, report.svg; adapters are merged into the weights, and also lie apart in lora.safetensors; what was
// learned lies apart in learned.safetensors. InputError: model, text or folder are wrong, and then the folder is
// untouched.
LinearizeResult linearize(const LinearizeRequest& request);

}  // namespace cortado
