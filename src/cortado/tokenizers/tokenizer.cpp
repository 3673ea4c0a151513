#include "cortado/tokenizers/tokenizer.h"

#include <charconv>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/json.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"
#include "cortado/tokenizers/kinds.h"

namespace cortado {
namespace {

constexpr const char* kFormat = "cortado tokenizer";
constexpr int64_t kVersion = 1;
constexpr int64_t kSmallestPieces = 260;  // 256 bytes, three control symbols, one character
constexpr int64_t kMostPieces = 1 << 20;
constexpr std::string_view kSentencePiece = "sentencepiece:";

// N in "sentencepiece:N"; 0 for byte and char.
int64_t pieces_of(const std::string& spec) {
  if (spec == "byte" || spec == "char") return 0;
  int64_t pieces = 0;
  if (spec.starts_with(kSentencePiece)) {
    const char* first = spec.data() + kSentencePiece.size();
    const char* last = spec.data() + spec.size();
    const auto [end, error] = std::from_chars(first, last, pieces);
    if (error == std::errc() && end == last && pieces >= kSmallestPieces && pieces <= kMostPieces) return pieces;
  }
  throw InputError(concat("[tokenizer] expected byte, char or sentencepiece:N with N from ", kSmallestPieces, " to ",
                          kMostPieces, ", got \"", spec, "\""));
}

}  // namespace

const SpecialTokens& Tokenizer::special() const {
  static const SpecialTokens none;
  return none;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> tokens = tokenizer.special().prefix;
  const auto rest = tokenizer.encode(text);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

std::vector<int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> tokens = encode_prompt(tokenizer, text);
  const auto& suffix = tokenizer.special().suffix;
  tokens.insert(tokens.end(), suffix.begin(), suffix.end());
  return tokens;
}

void check_token(int32_t token, int64_t vocabulary) {
  fail_input_if(token < 0 || token >= vocabulary, "[tokenizer] token ", token, " is not in the vocabulary of ",
                vocabulary);
}

void check_tokenizer_spec(const std::string& spec) { pieces_of(spec); }

void save_tokenizer_json(const Tokenizer& tokenizer, const std::string& directory, const Json& settings) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw Failure(concat("[", directory, "] cannot be made: ", error.message()));
  Json json{
      {"format", kFormat}, {"version", kVersion}, {"kind", tokenizer.kind()}, {"vocabulary", tokenizer.vocabulary()}};
  json.update(settings);
  write_file(directory + "/tokenizer.json", json.dump(2) + "\n");
}

std::shared_ptr<Tokenizer> load_tokenizer(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  JsonReader reader(read_json_file(path), path);
  if (reader.text("format") != kFormat) reader.fail("is not a tokenizer of cortado");
  reader.integer("version", kVersion, kVersion);
  const std::string kind = reader.choice("kind", {"byte", "char", "sentencepiece", "bpe"});
  const int64_t vocabulary = reader.integer("vocabulary", 1, kMostTokens);
  std::shared_ptr<Tokenizer> tokenizer;
  if (kind == "byte") tokenizer = std::make_shared<ByteTokenizer>();
  if (kind == "char") tokenizer = CharTokenizer::load(reader);
  if (kind == "sentencepiece") tokenizer = SentencePieceTokenizer::load(reader, directory);
  if (kind == "bpe") tokenizer = BpeTokenizer::load(reader, directory);
  reader.finish();
  reader.fail_if(tokenizer->vocabulary() != vocabulary, "key \"vocabulary\": the tokenizer has ",
                 tokenizer->vocabulary(), " tokens, got ", vocabulary);
  return tokenizer;
}

std::shared_ptr<Tokenizer> learn_tokenizer(const std::string& spec, const TextSource& source) {
  const int64_t pieces = pieces_of(spec);
  if (spec == "byte") return std::make_shared<ByteTokenizer>();
  if (spec == "char") return CharTokenizer::learn(source);
  return SentencePieceTokenizer::learn(source, pieces);
}

std::shared_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::vector<std::string>& files) {
  size_t next = 0;
  return learn_tokenizer(spec, [&](std::string& piece) {
    if (next == files.size()) return false;
    piece += read_file(files[next++]);
    return true;
  });
}

EncodedChat Tokenizer::encode_chat(const jinja::Text& text, std::string_view /*chat_template*/,
                                   const std::vector<size_t>& lengths) const {
  EncodedChat encoded{encode(text.bytes()), {}};
  for (const size_t length : lengths) {
    const auto part = encode(std::string_view(text.bytes()).substr(0, length));
    const auto end = std::mismatch(part.begin(), part.end(), encoded.tokens.begin(), encoded.tokens.end()).first;
    encoded.shared.push_back(end - part.begin());
  }
  return encoded;
}

bool SpecialTokens::is_stop(int32_t token) const { return std::find(stops.begin(), stops.end(), token) != stops.end(); }

std::string StreamDecoder::push(int32_t token) {
  if (tokenizer_->is_special(token)) return "";
  // All tokenizers decode token by token to bytes, so only a character can be unfinished.
  pending_ += started_ ? tokenizer_->piece(token) : tokenizer_->decode({token});
  started_ = true;
  std::string out;
  while (!pending_.empty()) {
    const size_t valid = utf8_valid_prefix(pending_);
    out.append(pending_, 0, valid);
    pending_.erase(0, valid);
    if (pending_.empty() || utf8_char(pending_).unfinished) break;
    out += "\uFFFD";  // a byte that cannot begin a character
    pending_.erase(0, 1);
  }
  return out;
}

std::string StreamDecoder::finish() {
  const std::string out = pending_.empty() ? "" : "\uFFFD";
  pending_.clear();
  return out;
}

}  // namespace cortado
