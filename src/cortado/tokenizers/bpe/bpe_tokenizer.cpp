#include "cortado/tokenizers/bpe/bpe_tokenizer.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/kinds.h"

namespace cortado {
namespace {

constexpr const char* kPiecesFile = "/pieces.json";

BpeDefinition checked(BpeDefinition definition, const std::string& place) {
  check_definition(definition, place);
  return definition;
}

// The added tokens that are searched before normalisation (`normalized` false) or after it (true).
std::vector<AddedToken> added_tokens(const BpeDefinition& definition, const TextSteps<NormalizerStep>& normalizer,
                                     bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : definition.added) {
    if (token.normalized != normalized) continue;
    if (normalized) token.text = normalize(normalizer, token.text);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeDefinition definition, const std::string& place)
    : definition_(checked(std::move(definition), place)),
      normalizer_(with_matchers(definition_.normalizer, "tokenizer.normalizer")),
      raw_(added_tokens(definition_, normalizer_, false)),
      normalized_(added_tokens(definition_, normalizer_, true)),
      pre_tokenizer_(definition_.pre_tokenizer),
      merger_(definition_, pre_tokenizer_.bytes()),
      decoder_(with_matchers(definition_.decoder, "tokenizer.decoder")),
      special_(definition_.tokens.size()) {
  pieces_.reserve(definition_.tokens.size());
  for (size_t id = 0; id < definition_.tokens.size(); ++id) {
    const std::string& token = definition_.tokens[id];
    pieces_.push_back(decode_token(decoder_, token, false));
    if (!token.empty()) ids_.emplace(token, static_cast<int32_t>(id));
  }
  for (const AddedToken& token : definition_.added) special_[token.id] = token.special;
}

std::shared_ptr<Tokenizer> BpeTokenizer::load(JsonReader& reader, const std::string& directory) {
  BpeDefinition definition;
  JsonFields settings(reader, /*required=*/true);
  settings_fields(settings, definition);
  const std::string checksum = reader.text("pieces_hash");
  const std::string path = directory + kPiecesFile;
  const std::string text = read_file(path);
  fail_input_if(hash_text(text) != checksum, "[", path,
                "] is damaged, or not the table that tokenizer.json belongs to");
  read_pieces(text, path, definition);
  return std::make_shared<BpeTokenizer>(std::move(definition), reader.place());
}

void BpeTokenizer::save(const std::string& directory) const {
  const std::string pieces = pieces_json(definition_);
  BpeDefinition definition = definition_;
  Json settings = JsonFields::written([&](JsonFields& json) { settings_fields(json, definition); });
  settings["pieces_hash"] = hash_text(pieces);
  save_tokenizer_json(*this, directory, settings);
  write_file(directory + kPiecesFile, pieces);
}

AddedTokenFinder::Allowed BpeTokenizer::outside(const Typed& typed) {
  if (typed.ranges.empty()) return {};
  return [&typed](const AddedToken& token, size_t begin) {
    const auto range = std::upper_bound(typed.ranges.begin(), typed.ranges.end(), begin,
                                        [](size_t at, const jinja::Typed& it) { return at < it.end; });
    const bool inside = range != typed.ranges.end() && range->begin < begin + token.text.size();
    return !inside || (!token.special && typed.chat_template.find(token.text) == std::string_view::npos);
  };
}

// Where the typed parts of a segment lie after its normalisation. If that is unclear, the whole segment counts as typed.
BpeTokenizer::Typed BpeTokenizer::normalized_typed(std::string_view segment, const std::string& normalized,
                                                   const Typed& typed) const {
  Typed moved{{}, typed.chat_template};
  if (normalized_.empty()) return moved;
  std::string joined;
  size_t at = 0;
  const auto add = [&](size_t end) {
    joined += normalize(normalizer_, std::string(segment.substr(at, end - at)));
    at = end;
  };
  for (const jinja::Typed& range : typed.ranges) {
    add(range.begin);
    const size_t begin = joined.size();
    add(range.end);
    moved.ranges.push_back({begin, joined.size(), range.source});
  }
  add(segment.size());
  if (joined != normalized && !moved.ranges.empty()) moved.ranges = {{0, normalized.size()}};
  return moved;
}

void BpeTokenizer::encode_segment(const Word& segment, const Typed& typed, Merger::Cache& cache,
                                  std::vector<int32_t>& tokens) const {
  const std::string text = normalize(normalizer_, std::string(segment.text));
  const Typed moved = normalized_typed(segment.text, text, typed);
  std::deque<std::string> storage;
  std::vector<Word> words;
  bool first = segment.first;
  const auto encode = [&](std::string_view part, int32_t id) {
    if (id >= 0) {
      tokens.push_back(id);
    } else {
      pre_tokenizer_.apply({part, first}, storage, words);
      for (const Word& word : words) merger_.encode(word.text, cache, tokens);
      storage.clear();
    }
    first = false;
  };
  normalized_.split(text, encode, 0, outside(moved));
}

// Returns the tokens of the text after `from`, which is the text's start or an added token's end.
std::vector<int32_t> BpeTokenizer::encode_from(std::string_view text, size_t from, const Typed& typed,
                                               Ends* ends) const {
  const size_t valid = utf8_valid_prefix(text);
  fail_input_if(valid < text.size(), "[tokenizer] the text is not UTF-8 at byte offset ", valid);
  std::vector<int32_t> tokens;
  tokens.reserve((text.size() - from) / 3);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  Merger::Cache own;
  Merger::Cache& cache = lock.owns_lock() ? cache_ : own;
  auto next = typed.ranges.begin();
  const auto encode = [&](std::string_view part, int32_t id) {
    const auto begin = static_cast<size_t>(part.data() - text.data()), end = begin + part.size();
    while (next != typed.ranges.end() && next->end <= begin) ++next;
    if (id < 0) {
      Typed inside{{}, typed.chat_template};
      for (auto range = next; range != typed.ranges.end() && range->begin < end; ++range) {
        inside.ranges.push_back({std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
      }
      return encode_segment({part, begin == 0}, inside, cache, tokens);
    }
    tokens.push_back(id);
    if (ends) ends->emplace_back(end, tokens.size());
  };
  raw_.split(text, encode, from, outside(typed));
  return tokens;
}

// Up to the end of an added token, the text's beginnings have the text's own tokens.
EncodedChat BpeTokenizer::encode_chat(const jinja::Text& text, std::string_view chat_template,
                                      const std::vector<size_t>& lengths) const {
  const Typed typed{text.typed(), chat_template};
  Ends ends = {{0, 0}};
  EncodedChat encoded{encode_from(text.bytes(), 0, typed, &ends), {}};
  const auto& whole = encoded.tokens;
  for (const size_t length : lengths) {
    const auto [bytes, count] = *std::prev(std::upper_bound(ends.begin(), ends.end(), std::pair(length, SIZE_MAX)));
    const auto rest = encode_from(std::string_view(text.bytes()).substr(0, length), bytes, typed);
    const auto start = whole.begin() + static_cast<std::ptrdiff_t>(count);
    encoded.shared.push_back(std::mismatch(start, whole.end(), rest.begin(), rest.end()).first - whole.begin());
  }
  return encoded;
}

std::string BpeTokenizer::decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    check_token(tokens[i], vocabulary());
    const auto id = static_cast<size_t>(tokens[i]);
    text += i == 0 ? decode_token(decoder_, definition_.tokens[id], true) : pieces_[id];
  }
  finish_text(decoder_, text);
  return text;
}

std::string BpeTokenizer::piece(int32_t token) const {
  check_token(token, vocabulary());
  return pieces_[token];
}

}  // namespace cortado
