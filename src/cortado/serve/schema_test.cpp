#include "cortado/serve/schema.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/serve/grammar.h"
#include "cortado/serve/no_repeats.h"
#include "cortado/serve/pattern.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/serving.h"

namespace cortado {
namespace {

TEST(Patterns, MatchWhatJavaScriptsDo) {
  struct Case {
    const char* pattern;
    std::vector<std::string> texts, others;
  };
  const std::vector<Case> cases = {
      {"^[a-c]+\\d{2,3}$", {"a12", "cab123"}, {"a1", "a1234", "12", "d12", "a12 "}},
      {"a|b$", {"a", "b"}, {"ab", ""}},
      {"^(?:ab)*$", {"", "ab", "abab"}, {"aba", "a"}},
      {"(?<year>[0-9]{4})-(0[1-9]|1[0-2])", {"2024-12"}, {"2024-13", "24-12"}},
      {"x{0,2}y?z{,3}", {"z{,3}", "xxyz{,3}"}, {"xxxz{,3}", "zzz"}},
      {".{2}", {"ab", "\"\\", "\xC3\xA9\xE6\x97\xA5"}, {"a", "a\n", "abc"}},
      {"[^\"\\\\\\n]+", {"abc", "\xC3\xA9"}, {"a\"", "\\", "\n", ""}},
      {"[\\w.-]+\\s\\S", {"a.b-c x"}, {"a  ", "\xC3\xA9 x"}},
      {"\\u00e9\\x41\\t\\u{1F600}",
       {"\xC3\xA9"
        "A\t\xF0\x9F\x98\x80"},
       {"eA\t"}},
      {"\\ud83d\\ude00", {"\xF0\x9F\x98\x80"}, {""}},
      {"(a?){3}b??", {"", "aaab", "ab"}, {"aaaa", "bb"}},
      {"^$", {""}, {"a"}},
      {"(^a|b)c$", {"ac", "bc"}, {"c", "abc"}},
      {"[a\\-z]|[-z]|[a-]", {"a", "-", "z"}, {"b"}},
  };
  for (const auto& [pattern, texts, others] : cases) {
    const Pattern it(pattern);
    for (const auto& text : texts) EXPECT_TRUE(it.matches(text)) << pattern << ": " << text;
    for (const auto& text : others) EXPECT_FALSE(it.matches(text)) << pattern << ": " << text;
  }
}

TEST(Patterns, ThatNoAutomatonCanFollowAreRefused) {
  for (const char* pattern :
       {"(",      ")",     "[a", "a**", "*a",    "a{3,2}", "(?=a)a", "(?<!a)a", "(a)\\1", "\\bword\\b",
        "\\p{L}", "(?i)a", "[]", "a\\", "\\u12", "a^b",    "b$a",    "[z-a]",   "x++",    "\\A"}) {
    const auto error = testing::error_of([&] { Pattern{pattern}; });
    EXPECT_NE(error, testing::kNoError) << pattern;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(Patterns, HaveTextsOfGivenLengths) {
  const Pattern words("^[a-z]+( [a-z]+)*$");
  const Pattern some = words.within({.least = 3, .most = 6});
  for (const char* text : {"abc", "a b", "abcdef", "a b cd"}) EXPECT_TRUE(some.matches(text)) << text;
  for (const char* text : {"ab", "abcdefg", "a ", "abcde "}) EXPECT_FALSE(some.matches(text)) << text;
  const Pattern long_ones = words.within({.least = 4});
  EXPECT_TRUE(long_ones.matches(std::string(100, 'a')));
  EXPECT_FALSE(long_ones.matches("abc"));
  EXPECT_EQ(words.within({.least = 1}).states(), words.states());
  EXPECT_THROW(Pattern("^a{3}$").within({.most = 2}), InputError);
  // Lengths count characters, not bytes.
  EXPECT_TRUE(Pattern("^.*$").within({.most = 2}).matches("\xC3\xA9\xC3\xA9"));
  // The automaton would be too large, so only shorter texts remain.
  const Pattern short_ones = words.within({.most = 1'000'000});
  EXPECT_TRUE(short_ones.matches("a few words of it"));
  EXPECT_LT(short_ones.states(), 10'000);
}

class EnforcedSchemas : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Grammars::available()) GTEST_SKIP() << "this build has no XGrammar";
  }
  std::shared_ptr<const Grammar> grammar_of(const std::string& schema, bool closed = false) {
    return grammars_.get(tokenizer_, parse_json(schema, "test"), closed);
  }
  // Whether the grammar accepts all of this text as a complete answer.
  bool takes(const std::string& schema, const std::string& text) {
    const auto state = grammar_of(schema)->begin(true);
    for (const char c : text + std::string(1, '\0')) {
      std::vector<float> logits(256, 1.0F);
      try {
        state->restrict(logits);
      } catch (const Failure&) {
        return false;
      }
      const auto token = static_cast<unsigned char>(c);
      if (logits[token] != 1.0F || !state->accept(token)) return false;
    }
    return true;
  }
  void expect(const std::string& schema, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
    for (const auto& text : good) EXPECT_TRUE(takes(schema, text)) << schema << " " << text;
    for (const auto& text : bad) EXPECT_FALSE(takes(schema, text)) << schema << " " << text;
  }
  void refused(const std::string& schema, const std::string& what) {
    const auto error = testing::error_of([&] { grammar_of(schema); });
    EXPECT_NE(error.find(what), std::string::npos) << schema << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = std::make_shared<testing::ChattyBytes>();
  Grammars grammars_;
};

TEST_F(EnforcedSchemas, RequiredNamesThatPropertiesLack) {
  expect(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "z"]})",
         {R"({"a": 1, "z": null})", R"({"a": 1, "z": [true]})"}, {R"({"a": 1})", R"({"z": 1})"});
  expect(R"({"required": ["a"]})", {R"({"a": 1})", R"({"a": 1, "b": 2})"}, {"{}", "1", R"({"b": 1})"});
  expect(R"({"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}})", {R"({"a": 1})"},
         {R"({"a": "1"})", "{}"});
  refused(R"({"type": "object", "properties": {}, "required": ["a"], "additionalProperties": false})", "\"a\"");
}

TEST_F(EnforcedSchemas, ObjectsWithPropertiesAreClosed) {
  expect(R"({"type": "object", "properties": {"a": {"type": "integer"}}})", {"{}", R"({"a": 1})"},
         {R"({"a": 1, "b": 2})", R"({"b": 2})", R"({"a":1})", R"({ "a": 1})"});
  expect(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": true})",
         {R"({"a": 1, "b": 2})"}, {R"({"a": 1, "a": "x"})", R"({"a": 1, "\u0061": "x"})"});
  expect(R"({"type": "object"})", {R"({"b": {"c": [1, 2]}})"}, {"[]"});
}

TEST_F(EnforcedSchemas, PatternsAreOfTheTextsThemselves) {
  expect(R"({"type": "string", "pattern": "^\"[a-z]+\"$"})", {R"("\"ab\"")"}, {R"("ab")", R"(""ab"")"});
  expect(R"({"type": "string", "pattern": "^a\\\\b\\n$"})", {R"("a\\b\n")"}, {R"("a\b\n")", R"("ab")"});
  expect(R"({"type": "string", "pattern": "^.\\S$"})", {R"("\"\\")", R"("ab")"}, {"\"\"\"\"", R"("a ")"});
  expect("{\"type\": \"string\", \"pattern\": \"^\xC3\xA9.$\"}", {"\"\xC3\xA9x\"", "\"\xC3\xA9\\\"\""},
         {"\"\xC3\xA9\"\""});
  expect(R"({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("abc")"},
         {R"("a")", R"("abcd")", R"("a1")"});
  expect(R"({"type": ["string", "null"], "pattern": "^a$"})", {R"("a")", "null"}, {R"("b")", "1"});
  expect(R"({"type": "string", "format": "date"})", {R"("2024-02-28")", R"("2024-12-31")"},
         {R"("2024-02-30")", R"("2024-13-01")", R"("0000-01-01")"});
  expect(R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})", {R"("https://a.example/b")"},
         {R"("")", R"("nowhere")"});
}

TEST_F(EnforcedSchemas, ListsWithoutRepetition) {
  expect(R"({"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": true, "minItems": 2})",
         {R"(["a", "b"])", R"([3, "b", "a"])"}, {R"(["a", "a"])", R"(["a"])", "[]", R"(["a", "b", 3, 3])"});
  expect(R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})", {R"(["a", "ab", "b"])", "[]"},
         {R"(["a", "a"])", R"(["a", "b", "a"])", R"(["a", "\u0061"])"});
  expect(R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})", {"[1, 11, 2]"},
         {"[1, 1]", "[1, 2, 1]"});
  expect(R"({"type": "array", "uniqueItems": true})", {"[[1, 1], {\"a\": 1}, [1], true, null]"},
         {"[[1, 1], [1, 1]]", "[1, 1.0]", "[true, true]"});
  // Avoids paths that can only end in a repetition.
  expect(R"({"type": "array", "items": {"type": "string", "pattern": "^a?$"}, "uniqueItems": true, "minItems": 2})",
         {R"(["a", ""])"}, {R"(["a", "a"])"});
  expect(R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2})",
         {R"({"a": 1, "b": 1})"}, {R"({"a": 1, "a": 2})", R"({"a": 1})"});
  refused(R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 3})", "different");
}

TEST_F(EnforcedSchemas, AlternativesThatExcludeOneAnother) {
  const std::string two = R"("discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
      "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "$defs": {
      "Cat": {"type": "object", "properties": {"kind": {"const": "cat", "default": "cat"}, "lives": {"type": "integer"}}},
      "Dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}})";
  expect("{" + two + "}", {R"({"kind": "cat", "lives": 9})", R"({"kind": "wolf"})"},
         {R"({"kind": "dog", "lives": 9})", R"({"lives": 9})", "{}"});
  expect(R"({"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "integer", "const": 5}]})",
         {"\"a\"", "null", "5"}, {"6"});
  refused(R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})", "oneOf");
  refused(R"({"oneOf": [{"type": "object"}, {"type": "object", "properties": {"a": {"const": 1}}}]})", "oneOf");
}

TEST_F(EnforcedSchemas, NumbersAreOfALengthThatProgramsRead) {
  expect(R"({"type": "integer"})", {"-123456789012345678", "0"}, {"1234567890123456789", "01"});
  expect(R"({"type": "integer", "minimum": 3})", {"123456789012345678", "3"}, {"1234567890123456789", "2"});
  expect(R"({"type": "number"})", {"1.5e-10", "-0.25"}, {"1e999", "1234567890123456789.0"});
}

TEST_F(EnforcedSchemas, SayNothingThatIsNotHeldTo) {
  expect(R"({"minimum": 5})", {"5", "6.5"}, {"4", "\"a\""});
  expect(R"({"enum": ["a", 1], "type": "string"})", {"\"a\""}, {"1"});
  refused(R"({"const": 1, "type": "string"})", "type");
  refused(R"({"minimum": 5, "minLength": 2})", "without \"type\"");
  refused(R"({"type": "object", "properties": {"ab": {}}, "patternProperties": {"^a": {"type": "integer"}}})",
          "\"ab\"");
  refused(R"({"type": "object", "patternProperties": {"^\"": {}}})", "pattern of keys");
}

}  // namespace
}  // namespace cortado
