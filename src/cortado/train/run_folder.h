// A run's folder: its files, and the lock on it.
#pragma once

#include <fstream>
#include <string>

#include "cortado/base/json.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// RUN/config.json           the model's config, with "training"
// RUN/tokenizer/            the tokenizer
// RUN/trainer.safetensors   the checkpoint for --resume, complete at any moment (train/resume.h)
// RUN/last.safetensors, RUN/best.safetensors   weights only, for everything that reads a model
// RUN/train.json            the progress of training, for people and scripts
// RUN/metrics.jsonl         one object per line
// RUN/lora.safetensors      adapters, if any (nn/lora.h); the weights above include them
// RUN/learned.safetensors   what a conversion learned (convert/weights.h); the weights above include it
// RUN/.lock                 locked while a process trains here
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

  bool has_checkpoint() const;  // whether starting over would lose a checkpoint
};

// Whether torchrun restarted this process after another one was lost, and the run has a checkpoint to resume from.
bool goes_on_after_a_loss(const RunFolder& folder);

// Writes the files that describe the run's model: the tokenizer (null if it reads no text), `config`, and the
// generation defaults of `base`, the run that it starts from ("": none).
void describe_run(const RunFolder& folder, const Tokenizer* tokenizer, const Json& config, const std::string& base);

// Which state of the folder is expected when a run starts.
enum class FolderUse {
  kFresh,      // must be new or empty; leftovers of a run that died before its first checkpoint are allowed
  kResume,     // must hold a run
  kOverwrite,  // deletes the run in it; any other file there is an error
};

// Locks the folder for the lifetime of this object. The lock ends with the process, even after kill -9.
class RunLock {
 public:
  // Creates the folder if it is missing. Throws InputError, and changes nothing, if another process trains there, the
  // use is not allowed, the folder is not writable, or the path is no folder.
  RunLock(const RunFolder& folder, FolderUse use);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

// The file RUN/metrics.jsonl.
class MetricsFile {
 public:
  // Keeps the lines up to step `last_step` and drops later ones and an unfinished last line; a resumed run writes them
  // again.
  MetricsFile(std::string path, int64_t last_step);
  // Writes one line and flushes it. Throws Failure if the disk is full.
  void write(const Json& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace cortado
