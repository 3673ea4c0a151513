#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <limits>
#include <numeric>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/random.h"
#include "cortado/base/utf8.h"
#include "cortado/testing/errors.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"
#include "cortado/tokenizers/chat.h"
#include "cortado/tokenizers/import.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado::bpe_test {
namespace {

using testing::error_of;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  std::vector<Span> spans;
  Matcher({pattern, true}, "test").find_all(text, spans);
  std::vector<std::string> found;
  for (const Span& span : spans) found.push_back(text.substr(span.begin, span.end - span.begin));
  return found;
}

using Texts = std::vector<std::string>;

TEST(Regex, MeansWhatRubyMeans) {
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "a  b\u00a0c\u180e"), (Texts{" ", " ", "\u00a0"}));  // U+180E is no space
  EXPECT_EQ(matches("[^\\s]+", "a\u3000b"), (Texts{"a", "b"}));
  EXPECT_EQ(matches("^.", "ab\ncd"), (Texts{"a", "c"}));
  EXPECT_EQ(matches("\\h+", "0xfg"), (Texts{"0", "f"}));
  EXPECT_EQ(matches("[\\w]+", "nai\u0308ve_1 x"), (Texts{"nai\u0308ve_1", "x"}));
  EXPECT_EQ(matches("(?i:'s)", "'S'\u017f"), (Texts{"'S", "'\u017f"}));
  EXPECT_EQ(matches("\\u00e9|[\\]x]", "\u00e9]x"), (Texts{"\u00e9", "]", "x"}));
  EXPECT_EQ(matches("a*", "baac").size(), 3U);  // before b, aa, and at the end after c
  EXPECT_TRUE(matches("a", "").empty());
}

TEST(Regex, RefusesWhatItCannotMean) {
  EXPECT_NE(error_of([] { Matcher({"[a[bc]]", true}, "x"); }).find("[ ] inside [ ], which is not supported"),
            std::string::npos);
  EXPECT_NE(error_of([] { Matcher({"[a-z&&[^b]]", true}, "x"); }).find("&& inside [ ]"), std::string::npos);
  EXPECT_NE(error_of([] { Matcher({"a{1,3}+", true}, "x"); }).find("{ }+"), std::string::npos);
  EXPECT_NE(error_of([] { Matcher({"(a", true}, "x"); }).find("is not a regular expression: "), std::string::npos);
  EXPECT_NE(error_of([] { Matcher({"a\\", true}, "x"); }).find("is not a regular expression: "), std::string::npos);
}

// Tokens over the letters a..d, with merges in an order that makes them compete.
BpeDefinition letters() {
  BpeDefinition definition;
  definition.tokens = {"a", "b", "c", "d", "aa", "ab", "ba", "bc", "aab", "abc", "cd", "abcd", "dd", "aaaa"};
  definition.merges = {{1, 2}, {0, 0}, {0, 1}, {1, 0}, {2, 3}, {0, 7}, {4, 1}, {9, 3}, {3, 3}, {4, 4}, {5, 2}};
  return definition;
}

// Byte-pair encoding as it is defined: applies the earliest merge at its leftmost place, until none applies.
std::vector<int32_t> by_definition(const BpeDefinition& definition, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  const auto id = [&](const std::string& text) {
    return std::find(definition.tokens.begin(), definition.tokens.end(), text) - definition.tokens.begin();
  };
  while (true) {
    size_t best = definition.merges.size(), place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::pair<int32_t, int32_t> pair(id(parts[i]), id(parts[i + 1]));
      const auto found = std::find(definition.merges.begin(), definition.merges.end(), pair);
      const auto rank = static_cast<size_t>(found - definition.merges.begin());
      if (rank < best) {
        best = rank;
        place = i;
      }
    }
    if (best == definition.merges.size()) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  std::vector<int32_t> tokens;
  for (const auto& part : parts) tokens.push_back(static_cast<int32_t>(id(part)));
  return tokens;
}

TEST(Merger, ShortAndLongWordsFollowTheDefinition) {
  const BpeDefinition definition = letters();
  const Merger merger(definition, false);
  const RandomStream random(5, "words");
  Merger::Cache cache;
  for (uint64_t serial = 0; serial < 400; ++serial) {
    std::string word;
    const uint64_t length = 1 + random.below(serial % 2 ? 40 : 200, serial);
    for (uint64_t i = 0; i < length; ++i) word += static_cast<char>('a' + random.below(4, serial, i + 1));
    std::vector<int32_t> tokens;
    merger.encode(word, cache, tokens);
    EXPECT_EQ(tokens, by_definition(definition, word)) << word;
    std::vector<int32_t> again;
    merger.encode(word, cache, again);
    EXPECT_EQ(again, tokens) << "from the cache";
  }
}

TEST(Merger, EqualScoresMergeFromTheLeft) {
  BpeDefinition definition;
  definition.tokens = {"a", "b", "c", "ab", "bc", "abc", "<x>"};
  definition.scores = {-9, -9, -9, -1, -1, -0.5F, std::numeric_limits<float>::quiet_NaN()};
  const Merger merger(definition, false);
  Merger::Cache cache;
  std::vector<int32_t> tokens;
  merger.encode("bcabcab", cache, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{4, 5, 3}));
}

TEST(Bpe, UnknownCharactersFallBackFuseOrVanish) {
  BpeDefinition definition = letters();
  const auto encode = [&](const std::string& text) { return BpeTokenizer(definition, "test").encode(text); };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encode("axya"), (Ids{4}));  // unknown characters vanish
  definition.tokens.push_back("<unk>");
  definition.unknown = 14;
  EXPECT_EQ(encode("axya"), (Ids{0, 14, 14, 0}));
  definition.fuse_unknown = true;
  EXPECT_EQ(encode("axya"), (Ids{0, 14, 0}));
  definition.tokens.push_back("<0xC3>");
  definition.tokens.push_back("<0xA4>");
  definition.byte_fallback = true;
  EXPECT_EQ(encode("a\u00e4x"), (Ids{0, 15, 16, 14}));
  definition.decoder = {{"byte_fallback"}};
  EXPECT_EQ(BpeTokenizer(definition, "test").decode({0, 15, 16}), "a\u00e4");
}

TEST(Bpe, AddedTokensComeFirst) {
  BpeDefinition definition = letters();
  definition.tokens.insert(definition.tokens.end(), {"<s>", "<s>>", "W", "L", "R", "\u00e9", " "});
  definition.added = {{14, "<s>", true},
                      {15, "<s>>", true},
                      {16, "W", false, false, false, false, true, true},
                      {17, "L", false, false, true},
                      {18, "R", false, false, false, true},
                      {19, "\u00e9", false, true}};
  definition.normalizer = {{"nfc"}};
  const BpeTokenizer tokenizer(definition, "test");
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer.encode("a<s>>b<s>c"), (Ids{0, 15, 1, 14, 2}));  // the longest match
  EXPECT_EQ(tokenizer.encode("W aW b"), (Ids{16, 20, 0, 20, 1}));     // not inside a word
  EXPECT_EQ(tokenizer.encode("a \nL b R  a"), (Ids{0, 17, 20, 1, 20, 18, 0}));
  EXPECT_EQ(tokenizer.encode("ae\u0301b"), (Ids{0, 19, 1})) << "in the normalised text";
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_TRUE(tokenizer.is_special(14));
  EXPECT_FALSE(tokenizer.is_special(16));
  EXPECT_FALSE(tokenizer.is_special(99));
}

Texts words_of(const std::vector<PreTokenizerStep>& steps, const std::string& text) {
  std::deque<std::string> storage;
  std::vector<Word> words;
  PreTokenizer(steps).apply({text, true}, storage, words);
  Texts out;
  for (const Word& word : words) out.emplace_back(word.text);
  return out;
}

TEST(PreTokenizer, Splits) {
  const auto split = [](const std::string& behavior, bool invert = false) {
    return words_of({{"split", {"-"}, behavior, invert}}, "-a--b-");
  };
  EXPECT_EQ(split("removed"), (Texts{"a", "b"}));
  EXPECT_EQ(split("isolated"), (Texts{"-", "a", "-", "-", "b", "-"}));
  EXPECT_EQ(split("merged_with_previous"), (Texts{"-", "a-", "-", "b-"}));
  EXPECT_EQ(split("merged_with_next"), (Texts{"-a", "-", "-b", "-"}));
  EXPECT_EQ(split("contiguous"), (Texts{"-", "a", "--", "b", "-"}));
  EXPECT_EQ(split("removed", true), (Texts{"-", "-", "-", "-"}));
  EXPECT_EQ(words_of({{"metaspace", {}, {}, false, "_", "first", true}}, "a  b"), (Texts{"_a", "_", "_b"}));
  EXPECT_EQ(words_of({{"metaspace", {}, {}, false, "_", "always", false}}, " a b"), (Texts{"_a_b"}));
  EXPECT_EQ(words_of({{"split", {"b"}}, {"metaspace", {}, {}, false, "_", "first", true}}, "abc"),
            (Texts{"_a", "b", "c"}));
  EXPECT_EQ(words_of({{"split", {"b"}}, {"prefix_space"}}, "a bc"), (Texts{" a ", " b", " c"}));
}

std::string saved_and_loaded(const Tokenizer& tokenizer, const std::string& text) {
  const TemporaryDirectory folder;
  tokenizer.save(folder.path());
  const auto loaded = load_tokenizer(folder.path());
  EXPECT_EQ(loaded->kind(), "bpe");
  EXPECT_EQ(loaded->vocabulary(), tokenizer.vocabulary());
  EXPECT_EQ(loaded->encode(text), tokenizer.encode(text));
  EXPECT_EQ(loaded->special().stops, tokenizer.special().stops);
  EXPECT_EQ(loaded->special().chat.text, tokenizer.special().chat.text);
  EXPECT_EQ(loaded->special().chat.named, tokenizer.special().chat.named);
  return loaded->decode(loaded->encode(text));
}

VocabularyMetadata small_llama() {
  VocabularyMetadata metadata;
  metadata.model = "llama";
  const auto add = [&](const std::string& token, float score, int32_t type) {
    metadata.tokens.push_back(token);
    metadata.scores.push_back(score);
    metadata.types.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  add("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    add(name, 0, 6);
  }
  for (const char* token : {"\u2581h", "\u2581hi", "\u2581", "h", "i", "o"}) {
    add(token, -static_cast<float>(metadata.tokens.size()), 1);
  }
  add("\u2581\u2581x", 0, 4);
  return metadata;
}

TEST(Gguf, LlamaVocabularies) {
  const auto tokenizer = import_vocabulary(small_llama(), "test");
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encode_document(*tokenizer, "hi ho\n"), (Ids{1, 260, 259, 264, 13}));
  EXPECT_EQ(tokenizer->encode("i<s>hi"), (Ids{261, 263, 1, 260}));
  EXPECT_EQ(tokenizer->encode("h  x"), (Ids{259, 265}));
  for (const std::string text : {"hi", " hi", "  hi \n\n", "h\u00e9\u4f60\U0001F600", ""}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_EQ(saved_and_loaded(*tokenizer, text), text);
  }
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(1), "") << "a special token";
  EXPECT_EQ(decoder.push(260), "hi") << "at the beginning";
  EXPECT_EQ(decoder.push(260), " hi");
  EXPECT_EQ(tokenizer->special().stops, (Ids{2}));
}

VocabularyMetadata small_gpt2() {
  VocabularyMetadata metadata;
  metadata.model = "gpt2";
  for (int byte = 0; byte < 256; ++byte) metadata.tokens.push_back(byte_letter(static_cast<unsigned char>(byte)));
  metadata.tokens.insert(metadata.tokens.end(), {"\u0120h", "\u0120hi", "12", "<|im_start|>", "<|im_end|>"});
  metadata.merges = {"\u0120 h", "\u0120h i", "1 2"};
  metadata.types.assign(metadata.tokens.size(), 1);
  metadata.types[259] = metadata.types[260] = 3;
  metadata.end = 260;
  return metadata;
}

TEST(Bpe, SharesBeginnings) {
  VocabularyMetadata metadata = small_gpt2();
  metadata.pre = "gpt-2";
  const auto tokenizer = import_vocabulary(metadata, "test");
  const std::string text = " hi hi<|im_start|> hi 12\n<|im_end|><|im_end|>\n<|im_start|>121212";
  std::vector<size_t> lengths(text.size() + 1);
  std::iota(lengths.begin(), lengths.end(), size_t{0});
  const auto [whole, shared] = tokenizer->encode_chat(text, "", lengths);
  EXPECT_EQ(whole, tokenizer->encode(text));
  for (const size_t length : lengths) {
    const auto part = tokenizer->encode(text.substr(0, length));
    const auto end = std::mismatch(part.begin(), part.end(), whole.begin(), whole.end()).first;
    EXPECT_EQ(shared[length], end - part.begin()) << length;
  }
}

// A mark is a token where the template writes it, and text where somebody typed it.
TEST(Bpe, TypedMarksAreText) {
  VocabularyMetadata metadata = small_gpt2();
  metadata.pre = "gpt-2";
  metadata.tokens.emplace_back("<think>");
  metadata.types.push_back(4);
  const auto tokenizer = import_vocabulary(metadata, "test");
  const std::string mark = "<|im_end|>", thought = "<think>";
  const std::vector<int32_t> letters = {'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'};
  const auto encoded = [&](const jinja::Text& text, std::string_view chat_template = "") {
    return tokenizer->encode_chat(text, chat_template, {}).tokens;
  };
  EXPECT_EQ(encoded(mark), (std::vector<int32_t>{260}));
  std::vector<int32_t> expected;
  for (const int32_t letter : letters)
    expected.push_back(tokenizer->encode(std::string(1, static_cast<char>(letter)))[0]);
  EXPECT_EQ(encoded(jinja::Text::typed(mark, 0)), expected);
  // One that is typed in part is none either; one beside a typed text is one.
  jinja::Text text("<|im");
  text.append(jinja::Text::typed("_end", 0));
  text.write("|>");
  EXPECT_EQ(encoded(text), expected);
  text = jinja::Text::typed(" hi", 0);
  text.write(mark);
  text.append(jinja::Text::typed(" hi", 1));
  EXPECT_EQ(encoded(text), (std::vector<int32_t>{257, 260, 257}));
  // Words run across the border between what is typed and what is not.
  text = jinja::Text(" ");
  text.append(jinja::Text::typed("hi", 0));
  EXPECT_EQ(encoded(text), (std::vector<int32_t>{257}));
  // A token that is not special is text like any other, unless the template writes it.
  EXPECT_EQ(encoded(jinja::Text::typed(thought, 0)), (std::vector<int32_t>{261}));
  EXPECT_EQ(encoded(jinja::Text::typed(thought, 0), "{{ '<think>' }}").size(), 7U);
  EXPECT_EQ(encoded(thought, "{{ '<think>' }}"), (std::vector<int32_t>{261}));
}

TEST(Gguf, Gpt2Vocabularies) {
  VocabularyMetadata metadata = small_gpt2();
  using Ids = std::vector<int32_t>;
  for (const auto& [pre, twelve] : std::vector<std::pair<std::string, Ids>>{{"gpt-2", {258}},
                                                                            {"smollm", {'1', '2'}},
                                                                            {"qwen2", {'1', '2'}},
                                                                            {"llama-bpe", {258}},
                                                                            {"default", {258}},
                                                                            {"qwen35", {'1', '2'}},
                                                                            {"gpt-4o", {258}},
                                                                            {"refact", {'1', '2'}},
                                                                            {"dbrx", {258}},
                                                                            {"mpt", {258}},
                                                                            {"olmo", {258}}}) {
    metadata.pre = pre;
    const auto tokenizer = import_vocabulary(metadata, "test");
    EXPECT_EQ(tokenizer->encode("12"), twelve) << pre;
    EXPECT_EQ(tokenizer->encode(" hi<|im_end|>"), (Ids{257, 260}));
    EXPECT_EQ(tokenizer->special().chat.text, known_chat_template("chatml"));
    EXPECT_EQ(tokenizer->special().stops, (Ids{260}));
    std::string text = " hi\t\u00e9\u4f60\U0001F600 1234 don't\r\n  <|im_start|>x";
    EXPECT_EQ(saved_and_loaded(*tokenizer, text), text) << pre;
  }
  metadata.pre = "klingon";
  EXPECT_EQ(
      error_of([&] { import_vocabulary(metadata, "f.gguf"); }),
      "[f.gguf] tokenizer.ggml.pre \"klingon\" is not supported: gpt-2, llama-bpe, falcon3, falcon-h1, lfm2, pixtral, "
      "tekken, gpt-4o, llama4, minimax-m2, kimi-k2, dbrx, qwen2, qwen35, smollm, "
      "refact, mpt, olmo and default are");
}

TEST(Gguf, BadMetadata) {
  const auto fails = [](auto base, const std::function<void(VocabularyMetadata&)>& change) {
    VocabularyMetadata metadata = base();
    change(metadata);
    return error_of([&] { import_vocabulary(metadata, "f"); });
  };
  using M = VocabularyMetadata;
  EXPECT_NE(fails(small_gpt2, [](M& m) { m.model = "bert"; }).find("\"bert\" is not supported"), std::string::npos);
  EXPECT_EQ(fails(small_gpt2, [](M& m) { m.tokens.clear(); }), "[f] tokenizer.ggml.tokens is missing");
  EXPECT_EQ(fails(small_gpt2, [](M& m) { m.merges.clear(); }), "[f] tokenizer.ggml.merges is missing");
  EXPECT_NE(fails(small_gpt2, [](M& m) { m.merges[0] = "xyz"; }).find("expected two tokens"), std::string::npos);
  EXPECT_NE(fails(small_gpt2, [](M& m) { m.merges[0] = "a b"; }).find("no token for both"), std::string::npos);
  EXPECT_NE(fails(small_gpt2, [](M& m) { m.types.pop_back(); }).find("260 token types"), std::string::npos);
  EXPECT_NE(fails(small_gpt2, [](M& m) { m.end = 999; }).find("there is no token 999"), std::string::npos);
  EXPECT_NE(fails(small_gpt2, [](M& m) { m.tokens[3] = "\xff"; }).find("token 3 is not UTF-8"), std::string::npos);
  EXPECT_NE(fails(small_llama, [](M& m) { m.scores.pop_back(); }).find("scores"), std::string::npos);
  EXPECT_NE(fails(small_llama, [](M& m) { m.scores[260] = NAN; }).find("token 260 is not a number"), std::string::npos);
}

std::string corpus() {
  const char* folder = std::getenv("CORTADO_SOURCE");
  return std::string(folder ? folder : ".") + "/data/tinyshakespeare.txt";
}

// Imports a model that was trained here as a pretrained one. The tokens are equal, except for control symbols.
TEST(SentencePieceImport, EqualsTheLearntTokenizer) {
  const TemporaryDirectory learnt, folder;
  const auto native = make_tokenizer("sentencepiece:600", {corpus()});
  native->save(learnt.path());
  std::filesystem::copy_file(learnt.path() + "/tokenizer.model", folder.path() + "/tokenizer.model");
  const auto imported = import_tokenizer(folder.path());
  EXPECT_EQ(imported->vocabulary(), 600);
  const std::string text = read_file(corpus()).substr(0, 60000);
  EXPECT_EQ(imported->encode(text), native->encode(text));
  for (const std::string hard : {"na\u00efve \u4f60\u597d  \t\U0001F600\n\n x", "   ", "", "<unk", "\u00a0\u3000"}) {
    EXPECT_EQ(imported->encode(hard), native->encode(hard)) << hard;
    EXPECT_EQ(imported->decode(imported->encode(hard)), hard);
  }
  // Control symbols are special tokens: encode finds them in the text, StreamDecoder hides them.
  EXPECT_EQ(imported->encode("</s>"), (std::vector<int32_t>{imported->find("</s>")}));
  EXPECT_TRUE(imported->is_special(imported->find("<s>")));
  EXPECT_EQ(saved_and_loaded(*imported, text), text);
}

// Tokens named by the files beside the model: encode finds them whole in any text, with the ids from these files.
TEST(SentencePieceImport, TokensOfTheFilesBesideIt) {
  const TemporaryDirectory learnt, folder;
  make_tokenizer("sentencepiece:400", {corpus()})->save(learnt.path());
  std::filesystem::copy_file(learnt.path() + "/tokenizer.model", folder.path() + "/tokenizer.model");
  const auto plain = import_tokenizer(folder.path());
  const std::string config = folder.path() + "/tokenizer_config.json", added = folder.path() + "/added_tokens.json";
  write_file(added, R"({"<|im_start|>": 400, "<|im_end|>": 402, "plain mark": 401})");
  write_file(folder.path() + "/special_tokens_map.json",
             R"({"eos_token": {"content": "<|im_end|>"}, "additional_special_tokens": ["<|im_start|>"]})");
  const auto check = [&](bool one) {
    const auto with = import_tokenizer(folder.path());
    EXPECT_EQ(with->vocabulary(), 403);
    auto expected = plain->encode("tea");
    expected.push_back(400);
    EXPECT_EQ(with->encode("tea<|im_start|>"), expected);
    expected.back() = 401;
    EXPECT_EQ(with->encode("teaplain mark"), expected);
    EXPECT_EQ(with->decode({400, 401}), "<|im_start|>plain mark");
    EXPECT_EQ(with->is_special(401), one);
    EXPECT_TRUE(with->is_special(400) && with->is_special(402));
    EXPECT_EQ(with->special().end, 402);
    const std::string text = "milk<|im_end|> and tea";
    EXPECT_EQ(saved_and_loaded(*with, text), with->decode(with->encode(text)));
  };
  check(false);
  // tokenizer_config.json overrides added_tokens.json.
  write_file(config, R"({"added_tokens_decoder": {"400": {"content": "<|im_start|>"}, "402": {"content": "<|im_end|>"},
                         "401": {"content": "plain mark", "special": true}}})");
  write_file(added, R"({"<|im_start|>": 9})");
  check(true);
  for (const auto& [bad, why] : std::vector<std::pair<std::string, std::string>>{
           {R"({"added_tokens_decoder": {"5": {"content": "<new>"}}})", "cannot have the id 5"},
           {R"({"added_tokens_decoder": {"x": {"content": "<new>"}}})", "added_tokens_decoder.x"},
           {R"({"added_tokens_decoder": {"-1": {"content": "<new>"}}})", "added_tokens_decoder.-1"},
           {R"({"added_tokens_decoder": {"500": {}}})", "content"},
           {R"({"added_tokens_decoder": ["<new>"]})", "added_tokens_decoder"}}) {
    write_file(config, bad);
    const std::string error = error_of([&] { import_tokenizer(folder.path()); });
    EXPECT_NE(error.find(why), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(SentencePieceImport, DamagedModels) {
  const TemporaryDirectory learnt, folder;
  make_tokenizer("sentencepiece:400", {corpus()})->save(learnt.path());
  const std::string good = read_file(learnt.path() + "/tokenizer.model");
  const std::string path = folder.path() + "/tokenizer.model";
  EXPECT_EQ(
      error_of([&] { import_tokenizer(folder.path()); }),
      "[" + folder.path() + "] has no tokenizer: expected tokenizer.json, tokenizer.model or rwkv_vocab_v20230424.txt");
  const RandomStream random(7, "damage");
  for (uint64_t serial = 0; serial < 300; ++serial) {
    std::string bad = good.substr(0, serial % 3 == 0 ? random.below(good.size(), serial) : good.size());
    for (uint64_t i = 1; i < 4 && !bad.empty(); ++i) {
      bad[random.below(bad.size(), serial, i)] ^= static_cast<char>(1 + random.below(255, serial, 10 + i));
    }
    write_file(path, bad);
    error_of([&] { import_tokenizer(folder.path())->encode("some text"); });  // an error of one line, no crash
  }
  write_file(path, "");
  EXPECT_NE(error_of([&] { import_tokenizer(folder.path()); }).find("is damaged"), std::string::npos);
}

constexpr const char* kHuggingFace =
    R"({"version": "1.0", "added_tokens": [{"id": 3, "content": "</s>", "special": true}],
  "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

TEST(HuggingFace, BadFilesAreRefusedInOneLine) {
  const TemporaryDirectory folder;
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = kHuggingFace;
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    write_file(folder.path() + "/tokenizer.json", text.replace(at, what.size(), instead));
    return error_of([&] { import_tokenizer(folder.path()); });
  };
  const auto says = [&](const std::string& what, const std::string& instead, const std::string& message) {
    const std::string error = with(what, instead);
    EXPECT_NE(error.find(message), std::string::npos) << instead << ": " << error;
  };
  EXPECT_EQ(with("BPE", "BPE"), testing::kNoError);
  EXPECT_EQ(with("\"a b\"", "[\"a\", \"b\"]"), testing::kNoError);
  says("{\"version\"", "{version", "not valid JSON");
  says("\"model\"", "\"modle\"", "is not a tokenizer of Hugging Face");
  says("BPE", "Unigram", "Unigram");
  says("\"a b\"", "\"a c\"", "merge 0 does not name two tokens");
  says("\"a b\"", "7", "merge 0 does not name two tokens");
  says("\"a b\"", "\"b a\"", "no token for both");
  says("[\"a b\"]", "{}", "\"model.merges\": expected a list");
  says("\"ab\": 2", "\"ab\": -2", "the id of \"ab\" must be from 0");
  says("\"ab\": 2", "\"ab\": 99999999999", "the id of \"ab\" must be from 0");
  says("\"ab\": 2", "\"ab\": 1", "have the same id 1");
  says("\"id\": 3", "\"id\": 1", "cannot have the id 1");
  says("\"id\": 3", "\"id\": 1e9", "id");
  says("\"NFC\"", "\"Lowercase\"", "Lowercase");
  says("\"WhitespaceSplit\"", "\"Bert\"", "Bert");
  says("{\"type\": \"WhitespaceSplit\"}",
       "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}",
       "is not a regular expression");
  says("\"merges\"", "\"unk_token\": \"?\", \"merges\"", "there is no token \"?\"");
  says("\"merges\"", "\"dropout\": 0.1, \"merges\"", "dropout");
}

TEST(Bpe, DamagedTables) {
  const TemporaryDirectory folder;
  BpeTokenizer(letters(), "test").save(folder.path());
  const std::string path = folder.path() + "/pieces.json";
  const std::string good = read_file(path);
  write_file(path, good + " ");
  EXPECT_NE(error_of([&] { load_tokenizer(folder.path()); }).find("is damaged"), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_NE(error_of([&] { load_tokenizer(folder.path()); }).find("pieces.json"), std::string::npos);
  EXPECT_EQ(error_of([&] { BpeTokenizer(letters(), "t").encode("ok\xff"); }),
            "[tokenizer] the text is not UTF-8 at byte offset 2");
  EXPECT_THROW(BpeTokenizer(letters(), "t").decode({14}), InputError);
}

}  // namespace
}  // namespace cortado::bpe_test
