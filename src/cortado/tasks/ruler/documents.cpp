// Questions of SQuAD and HotpotQA about documents, among unrelated documents.
#include <algorithm>
#include <functional>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/tasks/ruler/ruler.h"

namespace cortado {

namespace {

// Maps a document to its index in the sorted list.
class DocumentNumbers {
 public:
  explicit DocumentNumbers(std::vector<std::string>& texts) : texts_(texts) {
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  }
  int64_t operator()(const std::string& text) const {
    return std::lower_bound(texts_.begin(), texts_.end(), text) - texts_.begin();
  }

 private:
  const std::vector<std::string>& texts_;
};

// Reads a file's JSON with `read`. nlohmann's errors say which key or type is missing.
Documents documents_in(const std::string& file, const std::string& format,
                       const std::function<Documents(const Json&)>& read) {
  const Json json = read_json_file(file);
  Documents documents;
  try {
    documents = read(json);
  } catch (const Json::exception& error) {
    const std::string what = error.what();
    throw InputError(concat("[", file, "] is not ", format, ": ", what.substr(what.find(']') + 2)));
  }
  fail_input_if(documents.questions.empty(), "[", file, "] has no question with an answer");
  return documents;
}

std::string text_at(const Json& object, const char* key) { return object.at(key).get<std::string>(); }

Documents read_squad(const Json& json) {
  Documents documents;
  for (const Json& article : json.at("data")) {
    for (const Json& paragraph : article.at("paragraphs")) documents.texts.push_back(text_at(paragraph, "context"));
  }
  const DocumentNumbers number(documents.texts);
  for (const Json& article : json.at("data")) {
    std::vector<int64_t> all;
    for (const Json& paragraph : article.at("paragraphs")) all.push_back(number(text_at(paragraph, "context")));
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    for (const Json& paragraph : article.at("paragraphs")) {
      const int64_t gold = number(text_at(paragraph, "context"));
      for (const Json& asked : paragraph.at("qas")) {
        if (asked.at("is_impossible").get<bool>()) continue;
        Documents::Question question{.text = text_at(asked, "question"), .answers = {}, .gold = {gold}, .related = all};
        std::erase(question.related, gold);
        for (const Json& answer : asked.at("answers")) question.answers.push_back(text_at(answer, "text"));
        fail_input_if(question.answers.empty(), "[--squad] the question \"", question.text, "\" has no answer");
        documents.questions.push_back(question);
      }
    }
  }
  return documents;
}

std::string hotpot_text(const Json& document) {
  return document.at(0).get<std::string>() + "\n" + joined(document.at(1).get<std::vector<std::string>>(), "");
}

Documents read_hotpotqa(const Json& json) {
  Documents documents;
  for (const Json& asked : json) {
    for (const Json& document : asked.at("context")) documents.texts.push_back(hotpot_text(document));
  }
  const DocumentNumbers number(documents.texts);
  for (const Json& asked : json) {
    Documents::Question question{
        .text = text_at(asked, "question"), .answers = {text_at(asked, "answer")}, .gold = {}, .related = {}};
    for (const Json& document : asked.at("context")) question.gold.push_back(number(hotpot_text(document)));
    documents.questions.push_back(question);
  }
  return documents;
}

class DocumentTask : public RulerTask {
 public:
  DocumentTask(const std::string& name, const RulerOptions& options, const Documents& documents)
      : name_(name),
        documents_(documents),
        random_(static_cast<uint64_t>(options.seed), concat("ruler ", name, " ", options.length)),
        order_(static_cast<uint64_t>(options.seed), concat("ruler ", name, " order")) {}

  int64_t least(int64_t index) const override { return int64_t(question(index).gold.size()); }
  int64_t most(int64_t) const override { return int64_t(documents_.texts.size()); }

  RulerQuestion draw(int64_t index, int64_t size) const override {
    const Documents::Question& asked = question(index);
    const std::vector<int64_t> chosen = documents_for(asked, index, size);
    std::vector<std::string> texts;
    for (const int64_t place : order_.permutation(size, 0)) {
      texts.push_back(concat("Document ", texts.size() + 1, ":\n", documents_.texts[size_t(chosen[size_t(place)])]));
    }
    constexpr const char* kInstruction =
        "Answer the question based on the given documents. Only give me the answer and do not output any other words.";
    RulerQuestion found;
    found.size = size;
    found.references = asked.answers;
    found.text = concat(kInstruction, "\n\nThe following are given documents.\n\n", joined(texts, "\n\n"), "\n\n",
                        kInstruction, "\n\nQuestion: ", asked.text);
    found.answer_prefix = " Answer:";
    return found;
  }

 private:
  const Documents::Question& question(int64_t index) const {
    fail_input_if(index >= int64_t(documents_.questions.size()), "[--samples] ", name_, " has ",
                  documents_.questions.size(), " questions with an answer in its file");
    return documents_.questions[size_t(index)];
  }

  // The documents of the question, then others of the same article, then any others.
  std::vector<int64_t> documents_for(const Documents::Question& asked, int64_t index, int64_t size) const {
    std::vector<int64_t> chosen = asked.gold;
    const auto add_some_of = [&](const std::vector<int64_t>& others, Draws draws) {
      const int64_t wanted = std::min(size - int64_t(chosen.size()), int64_t(others.size()));
      for (const int64_t other : draws.distinct(wanted, int64_t(others.size())))
        chosen.push_back(others[size_t(other)]);
    };
    add_some_of(asked.related, Draws(random_, 2 * index));
    if (int64_t(chosen.size()) < size) {
      std::vector<int64_t> others;
      std::vector<char> taken(documents_.texts.size());
      for (const int64_t one : chosen) taken[size_t(one)] = 1;
      for (size_t i = 0; i < taken.size(); ++i) {
        if (!taken[i]) others.push_back(int64_t(i));
      }
      add_some_of(others, Draws(random_, 2 * index + 1));
    }
    return chosen;
  }

  std::string name_;
  const Documents& documents_;
  RandomStream random_, order_;
};

RulerKind document_kind(const std::string& name, RulerNeeds needs, Documents RulerMaterial::* documents) {
  return {name, {needs}, 32, true, [=](const RulerOptions& options, const RulerMaterial& material) {
            return std::make_unique<DocumentTask>(name, options, material.*documents);
          }};
}

}  // namespace

Documents Documents::squad(const std::string& file) {
  return documents_in(file, "SQuAD 2.0 (rajpurkar.github.io/SQuAD-explorer, dev-v2.0.json)", read_squad);
}

Documents Documents::hotpotqa(const std::string& file) {
  return documents_in(file, "HotpotQA (hotpotqa.github.io, hotpot_dev_distractor_v1.json)", read_hotpotqa);
}

std::vector<RulerKind> document_kinds() {
  return {document_kind("qa_squad", RulerNeeds::kSquad, &RulerMaterial::squad),
          document_kind("qa_hotpot", RulerNeeds::kHotpotQa, &RulerMaterial::hotpotqa)};
}

}  // namespace cortado
