// libcortado_sentencepiece.so: see bridge.h. No torch, no cortado, no output: std::cerr may not be ours to use under
// RTLD_DEEPBIND.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cortado/tokenizers/sentencepiece/bridge.h"

// Declared in a header that SentencePiece does not install.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace {

using sentencepiece::SentencePieceProcessor;

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

const SentencePieceProcessor& processor(const void* model) {
  return *static_cast<const SentencePieceProcessor*>(model);
}

void put(CortadoSink sink, void* context, const std::string& text) { sink(context, text.data(), text.size()); }

bool train(CortadoSentences next, void* sentences, int32_t vocabulary, CortadoSink result, void* context) {
  try {
    Sentences iterator(next, sentences);
    std::string model;
    // Identity, no dummy prefix, white space kept: decode(encode(x)) == x. The number of threads is fixed because it
    // decides the order of sums, and so must not depend on the machine.
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

void* load(const char* bytes, size_t count, CortadoSink error, void* context) {
  try {
    auto model = std::make_unique<SentencePieceProcessor>();
    const auto status = model->LoadFromSerializedProto({bytes, count});
    if (status.ok()) return model.release();
    put(error, context, status.message());
  } catch (const std::exception& caught) {
    put(error, context, caught.what());
  }
  return nullptr;
}

void unload(void* model) { delete static_cast<SentencePieceProcessor*>(model); }

int32_t size(const void* model) { return processor(model).GetPieceSize(); }

CortadoPieceKind piece(const void* model, int32_t id, CortadoSink result, void* context) {
  const SentencePieceProcessor& p = processor(model);
  put(result, context, p.IdToPiece(id));
  return p.IsByte(id)      ? kCortadoByte
         : p.IsControl(id) ? kCortadoControl
         : p.IsUnknown(id) ? kCortadoUnknown
                           : kCortadoPlain;
}

bool encode(const void* model, const char* text, size_t count, CortadoSink result, void* context) {
  try {
    std::vector<int> ids;
    if (!processor(model).Encode({text, count}, &ids).ok()) return false;
    result(context, reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

const CortadoSentencePiece* cortado_sentencepiece() {
  static const CortadoSentencePiece functions{train, load, unload, size, piece, encode};
  sentencepiece::logging::SetMinLogLevel(kSilent);
  return &functions;
}
