// Does one of two papers cite the other? Pairs of long texts, byte by byte: AAN in Long Range Arena (README.md).
#include <algorithm>
#include <array>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct RetrievalOptions {
  std::string folder;     // new_aan_pairs.{train,eval,test}.tsv
  int64_t length = 4000;  // bytes read per text

  void fields(JsonFields& json) {
    json.text("folder", folder);
    json.integer("length", length, 1, 10000);  // the public data are cut at 10,000 bytes
  }
};

constexpr std::array<const char*, 3> kPairFiles = {"new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv",
                                                   "new_aan_pairs.test.tsv"};

// Rows of label, two ids and two texts, separated by tabs, without header and quotes.
class Pairs {
 public:
  explicit Pairs(const std::string& path) : file_(path) {
    const std::string_view text = file_.text();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      check(path, text.substr(begin, end - begin));
      rows_.push_back({begin, end});
      begin = end + 1;
    }
    fail_input_if(rows_.empty(), "[", path, "] has no pairs");
  }

  int64_t count() const { return int64_t(rows_.size()); }
  std::array<std::string_view, 5> row(int64_t index) const {
    const auto [begin, end] = rows_[size_t(index)];
    return columns(file_.text().substr(begin, end - begin));
  }

 private:
  // The last column is the rest of the line.
  static std::array<std::string_view, 5> columns(std::string_view line) {
    std::array<std::string_view, 5> parts;
    for (size_t i = 0; i < 4; ++i) {
      const size_t tab = std::min(line.find('\t'), line.size());
      parts[i] = line.substr(0, tab);
      line.remove_prefix(std::min(tab + 1, line.size()));
    }
    parts[4] = line;
    return parts;
  }
  void check(const std::string& path, std::string_view line) const {
    const size_t number = rows_.size() + 1;
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    fail_input_if(tabs != 4, "[", path, "] line ", number, ": expected 5 columns with tabs between them, got ",
                  tabs + 1);
    const auto parts = columns(line);
    fail_input_if(parts[0] != "0.0" && parts[0] != "1.0", "[", path, "] line ", number,
                  ": the label must be 0.0 or 1.0");
    fail_input_if(parts[3].empty() || parts[4].empty(), "[", path, "] line ", number, ": a text is empty");
  }

  MappedFile file_;
  std::vector<std::pair<size_t, size_t>> rows_;
};

class RetrievalExamples : public TaskExamples {
 public:
  explicit RetrievalExamples(const RetrievalOptions& options) : options_(options) {
    need_folder(options.folder, "retrieval",
                "tsv_data of Long Range Arena's lra_release.gz (github.com/google-research/long-range-arena)");
    for (const char* file : kPairFiles) splits_.push_back(std::make_unique<Pairs>(options.folder + "/" + file));
  }

  TaskShape shape() const override {
    return {.vocabulary = 256, .classes = 2, .pairs = true, .length = options_.length};
  }
  int64_t size(Split split) const override { return splits_[size_t(split)]->count(); }
  Example example(Split split, int64_t index) const override {
    const auto row = splits_[size_t(split)]->row(index);
    const auto bytes = [&](std::string_view text) {
      text = text.substr(0, size_t(options_.length));
      return std::vector<int64_t>(reinterpret_cast<const uint8_t*>(text.data()),
                                  reinterpret_cast<const uint8_t*>(text.data()) + text.size());
    };
    Example example;
    example.tokens = bytes(row[3]);
    example.second = bytes(row[4]);
    example.label = row[0] == "1.0";
    return example;
  }

  std::unique_ptr<Scores> scores(Split) const override { return class_scores(); }
  Json statistics(int64_t count) const override {
    count = std::min(count, size(Split::kTrain));
    double length = 0, cited = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Example it = example(Split::kTrain, i);
      length += double(it.tokens.size() + it.second.size()) / (2 * double(count));
      cited += double(it.label) / double(count);
    }
    return {{"length", length}, {"cited", cited}};
  }
  std::string drawn(const Example& example) const override {
    const std::string first(example.tokens.begin(), example.tokens.end());
    const std::string second(example.second.begin(), example.second.end());
    return first + "\n--\n" + second + (example.label == 1 ? "\n-> cited\n" : "\n-> not cited\n");
  }

 private:
  RetrievalOptions options_;
  std::vector<std::unique_ptr<Pairs>> splits_;
};

}  // namespace

TaskKind retrieval_task() {
  return {"retrieval", "Long Range Arena: does one of two papers of AAN cite the other, byte by byte",
          opens<RetrievalExamples, RetrievalOptions>};
}

}  // namespace cortado
