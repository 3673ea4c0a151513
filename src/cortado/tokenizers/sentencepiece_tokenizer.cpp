#include <cstdio>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/random.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/imports.h"
#include "cortado/tokenizers/kinds.h"
#include "cortado/tokenizers/sentencepiece/bridge.h"

namespace cortado {
namespace {

// SentencePiece writes a space as this character (U+2581), so a U+2581 in the text needs special treatment.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
constexpr size_t kLongestSegment = 1 << 14;   // bytes per call of encode
constexpr size_t kLongestSentence = 1 << 12;  // bytes per training sentence
constexpr size_t kTrainingBytes = 32 << 20;   // more text hardly changes the pieces, and costs memory and minutes

void append_to(void* text, const char* bytes, size_t count) { static_cast<std::string*>(text)->append(bytes, count); }

// Returns where a segment at the start of `text` ends: after the first newline, else before the last space within
// `longest` bytes, else at a character boundary. No piece contains a newline, or a space except at its start, so the
// first two cuts change no token.
size_t segment_end(std::string_view text, size_t longest) {
  const size_t newline = text.substr(0, longest).find('\n');
  if (newline != std::string_view::npos) return newline + 1;
  if (text.size() <= longest) return text.size();
  const size_t space = text.rfind(' ', longest);
  if (space != std::string_view::npos && space > 0) return space;
  size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

// Cuts a text that arrives in pieces into training sentences: lines without newlines, tabs and space marks (the trainer
// skips sentences that contain its own marks). Splits long lines and drops empty ones. From more than kTrainingBytes it
// keeps an even sample: all sentences at first, then about every 2nd, 4th, ... as the text gets longer.
class TrainingSentences {
 public:
  explicit TrainingSentences(const TextSource& source) {
    std::string buffer, piece;
    while (piece.clear(), source(piece)) {
      buffer += piece;
      size_t at = 0;
      // The last sentence may continue in the next piece.
      while (buffer.size() - at > 2 * kLongestSentence) at += take(std::string_view(buffer).substr(at));
      buffer.erase(0, at);
    }
    for (size_t at = 0; at < buffer.size();) at += take(std::string_view(buffer).substr(at));
  }

  static bool next(void* self, const char** text, size_t* count) {
    auto& sentences = *static_cast<TrainingSentences*>(self);
    if (sentences.next_ == sentences.kept_.size()) return false;
    const std::string& sentence = sentences.kept_[sentences.next_++].text;
    *text = sentence.data();
    *count = sentence.size();
    return true;
  }

  bool empty() const { return kept_.empty(); }

 private:
  struct Sentence {
    uint64_t lot;
    std::string text;
  };

  size_t take(std::string_view text) {
    const size_t end = segment_end(text, kLongestSentence);
    std::string_view line = text.substr(0, end);
    while (!line.empty()) {
      const size_t tab = std::min({line.find('\t'), line.find('\n'), line.find(kSpaceMark), line.size()});
      if (tab > 0) keep(line.substr(0, tab));
      const size_t mark = line.substr(tab, kSpaceMark.size()) == kSpaceMark ? kSpaceMark.size() : 1;
      line.remove_prefix(std::min(line.size(), tab + mark));
    }
    return end;
  }

  // Keeps a sentence if its random number (`lot`) is at most the limit. Too many kept bytes halve the limit.
  void keep(std::string_view sentence) {
    const uint64_t lot = lots_.bits(count_++);
    if (lot > limit_) return;
    kept_.push_back({lot, std::string(sentence)});
    bytes_ += sentence.size();
    if (bytes_ <= kTrainingBytes) return;
    limit_ /= 2;
    std::erase_if(kept_, [&](const Sentence& s) { return s.lot > limit_; });
    bytes_ = 0;
    for (const Sentence& s : kept_) bytes_ += s.text.size();
  }

  const RandomStream lots_{0, "sentencepiece training sentences"};
  std::vector<Sentence> kept_;
  uint64_t limit_ = ~uint64_t{0};
  uint64_t count_ = 0;
  size_t bytes_ = 0;
  size_t next_ = 0;
};

// Translates messages such as "./src/trainer_interface.cc(660) [...] Vocabulary size too high (20000). Please set it to
// a value <= 564.", which address SentencePiece's authors.
std::string plain_reason(const std::string& reason, int64_t vocabulary) {
  if (const size_t at = reason.find("<= "); reason.find("too high") != std::string::npos && at != std::string::npos) {
    return concat("the text has too few different words for ", vocabulary, " pieces: at most ",
                  std::atoll(reason.c_str() + at + 3), " are possible");
  }
  if (const size_t at = reason.find(" vs "); at != std::string::npos) {
    return concat("the text has too many different characters for ", vocabulary, " pieces: at least ",
                  std::atoll(reason.c_str() + at + 4), " are needed");
  }
  const size_t end = reason.find("] ");
  return end == std::string::npos ? reason : reason.substr(end + 2);
}

BpeDefinition definition_of(const std::string& model, const std::string& source_name) {
  BpeDefinition definition = define_vocabulary(read_sentencepiece_model(model, source_name), source_name);
  // Control symbols (<unk>, <s>, </s>) decode to nothing, and the same characters in a text are ordinary text.
  for (const AddedToken& mark : definition.added) definition.tokens[mark.id].clear();
  definition.added.clear();
  definition.special = {};
  definition.unknown = -1;
  // A piece has a space only at its beginning. So the text can be cut before spaces: most words repeat and are cached.
  definition.pre_tokenizer = {{"split", {std::string(kSpaceMark)}, "merged_with_next"}};
  return definition;
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::string model_bytes, const std::string& source_name)
    : model_bytes_(std::move(model_bytes)), pieces_(definition_of(model_bytes_, source_name), source_name) {
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    fail_input_if(pieces_.find(name) < 0, "[", source_name, "] is a SentencePiece model without byte fallback");
  }
  for (const char* name : {"<0xE2>", "<0x96>", "<0x81>"}) space_mark_.push_back(pieces_.find(name));
}

std::shared_ptr<Tokenizer> SentencePieceTokenizer::learn(const TextSource& source, int64_t vocabulary) {
  TrainingSentences sentences(source);
  fail_input_if(sentences.empty(), "[tokenizer] sentencepiece: there is no text to learn from");
  std::string result;
  const bool learnt = sentencepiece_trainer()(TrainingSentences::next, &sentences, static_cast<int32_t>(vocabulary),
                                              append_to, &result);
  fail_input_if(!learnt, "[tokenizer] sentencepiece: ", plain_reason(result, vocabulary));
  return std::make_shared<SentencePieceTokenizer>(std::move(result), "tokenizer");
}

std::shared_ptr<Tokenizer> SentencePieceTokenizer::load(JsonReader& reader, const std::string& directory) {
  const std::string checksum = reader.text("model_hash");
  const std::string path = directory + "/tokenizer.model";
  std::string bytes = read_file(path);
  fail_input_if(hash_text(bytes) != checksum, "[", path,
                "] is damaged, or not the model that tokenizer.json belongs to");
  return std::make_shared<SentencePieceTokenizer>(std::move(bytes), path);
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  const size_t valid = utf8_valid_prefix(text);
  fail_input_if(valid < text.size(), "[tokenizer] the text is not UTF-8 at byte offset ", valid);
  std::vector<int32_t> tokens;
  tokens.reserve(text.size() / 3);
  const auto append = [&](const std::vector<int32_t>& more) { tokens.insert(tokens.end(), more.begin(), more.end()); };
  while (!text.empty()) {
    std::string_view segment = text.substr(0, segment_end(text, kLongestSegment));
    text.remove_prefix(segment.size());
    for (size_t mark = 0; mark != std::string_view::npos;) {  // decoded, the space mark's token would become a space
      mark = segment.find(kSpaceMark);
      append(pieces_.encode(segment.substr(0, mark)));
      if (mark == std::string_view::npos) continue;
      append(space_mark_);
      segment.remove_prefix(mark + kSpaceMark.size());
    }
  }
  return tokens;
}

void SentencePieceTokenizer::save(const std::string& directory) const {
  save_tokenizer_json(*this, directory, Json{{"model_hash", hash_text(model_bytes_)}});
  write_file(directory + "/tokenizer.model", model_bytes_);
}

}  // namespace cortado
