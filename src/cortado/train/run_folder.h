// A run's folder: who may write into it, and what lies where.
#pragma once

#include <fstream>
#include <string>

#include "cortado/base/json.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// RUN/config.json           the model's config, and "training"
// RUN/tokenizer/            the tokenizer
// RUN/trainer.safetensors   what --resume needs, complete at any moment (train/resume.h)
// RUN/last.safetensors, RUN/best.safetensors   weights alone, for everything that reads a model
// RUN/train.json            where training stands, for people and scripts
// RUN/metrics.jsonl         one object a line
// RUN/lora.safetensors      adapters, where there are (nn/lora.h); the weights above hold them too
// RUN/learned.safetensors   what a conversion learned (convert/weights.h); the weights above hold it too
// RUN/.lock                 held while a process trains here
struct RunFolder {
  std::string path;

  std::string config() const { return path + "/config.json"; }
  std::string tokenizer() const { return path + "/tokenizer"; }
  std::string trainer() const { return path + "/trainer.safetensors"; }
  std::string last() const { return path + "/last.safetensors"; }
  std::string best() const { return path + "/best.safetensors"; }
  std::string summary() const { return path + "/train.json"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string adapters() const { return path + "/lora.safetensors"; }
  std::string learned() const { return path + "/learned.safetensors"; }
  std::string lock() const { return path + "/.lock"; }

  bool has_checkpoint() const;  // something that starting over would lose
};

// Whether this process was started anew after one of several was gone, and the run has come far enough to go on.
bool goes_on_after_a_loss(const RunFolder& folder);

// Writes what says which model the run is of: its tokenizer (none where it reads no text), and `config` with whatever it
// says beside the model; of the run `base` that it was made from ("": none), how it is sampled.
void describe_run(const RunFolder& folder, const Tokenizer* tokenizer, const Json& config, const std::string& base);

enum class FolderUse {
  kFresh,      // must be new or empty (what a run that died before its first checkpoint left does not count)
  kResume,     // must hold a run
  kOverwrite,  // a run there is deleted; anything that is not a run's stays, and is an error
};

// Keeps the folder for this process until the end of life (the lock dies with the process, also by kill -9).
class RunLock {
 public:
  // Makes the folder where it is missing. In use (another process trains there, or the use above is not allowed), not
  // writable, not a folder: InputError, and nothing has changed.
  RunLock(const RunFolder& folder, FolderUse use);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

// RUN/metrics.jsonl.
class MetricsFile {
 public:
  // Keeps the lines up to step `last_step` and drops later ones and a broken last line: a resumed run writes those
  // anew.
  MetricsFile(std::string path, int64_t last_step);
  // Written through at once. Failure when the disk is full.
  void write(const Json& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace cortado
