// libcortado_sentencepiece.so: see bridge.h. Uses neither torch nor cortado, and prints nothing: with RTLD_DEEPBIND,
// std::cerr may be another object than the program's.
#include <sentencepiece_trainer.h>

#include <exception>
#include <string>

#include "cortado/tokenizers/sentencepiece/bridge.h"

// Declared in a header that SentencePiece does not install.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace {

constexpr int kSilent = 3;  // fatal only

class Sentences : public sentencepiece::SentenceIterator {
 public:
  Sentences(CortadoSentences next, void* context) : next_(next), context_(context) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    const char* text = nullptr;
    size_t count = 0;
    done_ = !next_(context_, &text, &count);
    if (!done_) value_.assign(text, count);
  }

 private:
  CortadoSentences next_;
  void* context_;
  std::string value_;
  bool done_ = false;
};

void put(CortadoSink sink, void* context, const std::string& text) { sink(context, text.data(), text.size()); }

}  // namespace

bool cortado_sentencepiece(CortadoSentences next, void* sentences, int32_t vocabulary, CortadoSink result,
                           void* context) {
  sentencepiece::logging::SetMinLogLevel(kSilent);
  try {
    Sentences iterator(next, sentences);
    std::string model;
    // No normalisation, no dummy prefix, white space kept: decode(encode(x)) == x. The number of threads determines the
    // order of sums; it is fixed so that the result does not depend on the machine.
    const auto status = sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                                    {"vocab_size", std::to_string(vocabulary)},
                                                                    {"byte_fallback", "true"},
                                                                    {"normalization_rule_name", "identity"},
                                                                    {"add_dummy_prefix", "false"},
                                                                    {"remove_extra_whitespaces", "false"},
                                                                    {"character_coverage", "0.9995"},
                                                                    {"max_sentence_length", "16384"},
                                                                    {"num_threads", "4"},
                                                                    {"minloglevel", std::to_string(kSilent)}},
                                                                   &iterator, &model);
    put(result, context, status.ok() ? model : std::string(status.message()));
    return status.ok();
  } catch (const std::exception& error) {
    put(result, context, error.what());
    return false;
  }
}
