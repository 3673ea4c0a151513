#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/json.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/version.h"
#include "cortado/data/text_stream.h"
#include "cortado/data/token_file.h"
#include "cortado/formats/checksum.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kInMemory = 64 << 20;  // bytes of text, whose tokens take four times as much memory
constexpr const char* kFormat = "cortado dataset";
constexpr int64_t kDatasetVersion = 1;

// The total size of the files in bytes. InputError for anything but a regular, non-empty file: the text is read twice.
int64_t total_bytes(const std::vector<std::string>& files) {
  int64_t bytes = 0;
  for (const auto& file : files) {
    const MappedFile map(file);
    fail_input_if(map.size() == 0, "[", file, "] is empty: there is no text in it");
    bytes += static_cast<int64_t>(map.size());
  }
  return bytes;
}

// Checks the options before any work begins.
void check_options(const PrepareOptions& options) {
  fail_input_if(options.files.empty(), "[data] no text files are given");
  fail_input_if(!(options.validation >= 0 && options.validation < 1),
                "[data] the validation part must be at least 0 and less than 1, got ", options.validation);
  fail_input_if(!(options.test >= 0 && options.test + options.validation < 1),
                "[data] the test part must be at least 0, and less than 1 with the validation part, got ",
                options.test);
  check_tokenizer_spec(options.tokenizer);
}

void stop_if_interrupted() {
  if (interrupt_requested()) throw Failure("[data] interrupted: nothing was written");
}

ProgressBar make_bar(const std::string& label, int64_t bytes, bool shown) {
  return ProgressBar({.label = label, .total = bytes, .unit = "B", .bytes = true, .quiet = !shown});
}

// The first pass: trains the tokenizer, if there is none yet, and counts the characters of the documents.
struct Survey {
  std::shared_ptr<Tokenizer> tokenizer;
  int64_t characters = 0;  // bytes for the byte tokenizer
};

Survey survey(const PrepareOptions& options, const std::shared_ptr<Tokenizer>& tokenizer, int64_t bytes) {
  const bool any_bytes = tokenizer ? tokenizer->kind() == "byte" : options.tokenizer == "byte";
  ProgressBar bar = make_bar("reading", bytes, options.progress);
  DocumentStream stream(options.files, options.document_separator, any_bytes, [&](int64_t read) { bar.update(read); });
  Survey result;
  DocumentStream::Piece piece;
  const TextSource source = [&](std::string& text) {
    stop_if_interrupted();
    if (!stream.next(piece)) return false;
    result.characters += any_bytes ? static_cast<int64_t>(piece.text.size()) : count_characters(piece.text);
    text += piece.text;
    return true;
  };
  result.tokenizer = tokenizer ? tokenizer : learn_tokenizer(options.tokenizer, source);
  // If no tokenizer was trained, the text still has to be counted and checked.
  std::string text;
  while (source(text)) text.clear();
  return result;
}

// The second pass: writes the first int(n * (1 - validation - test)) characters to `train`, the test part unchanged to
// `test`, and the characters between to `validation`.
class Splitter {
 public:
  using Text = std::function<void(std::string_view)>;

  Splitter(const Survey& facts, const PrepareOptions& options, TokenSink& train, TokenSink& validation, Text test)
      : tokenizer_(*facts.tokenizer),
        bytes_(facts.tokenizer->kind() == "byte"),
        separator_(options.document_separator),
        train_(train),
        validation_(validation),
        test_(std::move(test)) {
    const auto first = [&](double share) {
      return static_cast<int64_t>(static_cast<double>(facts.characters) * share);
    };
    left_ = first(1 - options.validation - options.test);
    left_to_validate_ = options.test > 0 ? first(1 - options.test) - left_ : facts.characters;
  }

  void add(const DocumentStream::Piece& piece) {
    if (piece.starts_document) {
      train_.start_document();
      validation_.start_document();
      if (tested_) test_(separator_);
    }
    const size_t cut = first_bytes(piece.text, left_);
    train_.append(tokenizer_.encode(piece.text.substr(0, cut)));
    const std::string_view rest = piece.text.substr(cut);
    const size_t end = first_bytes(rest, left_to_validate_);
    validation_.append(tokenizer_.encode(rest.substr(0, end)));
    if (end == rest.size()) return;
    tested_ = true;
    test_(rest.substr(end));
  }

 private:
  // Bytes of the first `left` characters of the text; reduces `left` by the characters of the text.
  size_t first_bytes(std::string_view text, int64_t& left) const {
    if (left == 0) return 0;
    const int64_t count = bytes_ ? static_cast<int64_t>(text.size()) : count_characters(text);
    const int64_t wanted = std::exchange(left, std::max<int64_t>(0, left - count));
    if (count <= wanted) return text.size();
    if (!bytes_) return bytes_of_characters(text, wanted);
    // Does not cut UTF-8 text inside a character either.
    auto cut = static_cast<size_t>(wanted);
    for (int i = 0; i < 3 && cut < text.size() && (text[cut] & 0xC0) == 0x80; ++i) ++cut;
    return cut;
  }

  const Tokenizer& tokenizer_;
  bool bytes_;
  std::string separator_;
  int64_t left_, left_to_validate_;  // characters that still go to each part
  TokenSink& train_;
  TokenSink& validation_;
  Text test_;
  bool tested_ = false;
};

void tokenize(const PrepareOptions& options, const Survey& facts, int64_t bytes, TokenSink& train,
              TokenSink& validation, const Splitter::Text& test) {
  ProgressBar bar = make_bar("tokens", bytes, options.progress);
  DocumentStream stream(options.files, options.document_separator, facts.tokenizer->kind() == "byte",
                        [&](int64_t read) { bar.update(read); });
  Splitter splitter(facts, options, train, validation, test);
  DocumentStream::Piece piece;
  while (stream.next(piece)) {
    stop_if_interrupted();
    splitter.add(piece);
  }
  fail_input_if(train.size() == 0, "[", options.files[0], "] the text is too short: nothing is left to train on");
}

std::string checksum_of(const std::string& path) {
  const MappedFile file(path);
  file.expect_sequential();
  Checksum checksum;
  checksum.add(file.data(), file.size(), [&](const void* bytes, size_t count) { file.release(bytes, count); });
  return checksum.hex();
}

// Writes and opens FOLDER/train.tokens and FOLDER/validation.tokens; writes FOLDER/test.txt if there is a test part.
Dataset write_tokens(const PrepareOptions& options, const Survey& facts, int64_t bytes, const std::string& folder) {
  const int64_t vocabulary = facts.tokenizer->vocabulary();
  const std::string train_path = folder + "/train.tokens", validation_path = folder + "/validation.tokens";
  TokenFileWriter train(train_path, vocabulary), validation(validation_path, vocabulary);
  std::ofstream test;
  const std::string test_path = folder + "/test.txt";
  tokenize(options, facts, bytes, train, validation, [&](std::string_view text) {
    if (!test.is_open()) test.open(test_path, std::ios::binary);
    test.write(text.data(), static_cast<std::streamsize>(text.size()));
  });
  train.finish();
  validation.finish();
  test.close();
  if (!test && std::filesystem::exists(test_path)) throw Failure(concat("[", test_path, "] cannot be written"));
  return {TokenFile::open(train_path), TokenFile::open(validation_path), facts.tokenizer};
}

// The contents of dataset.json. `folder` must already have both token files.
Json describe(const PrepareOptions& options, const Survey& facts, const std::string& folder, const Dataset& written) {
  const auto part = [&](const TokenFile& file, const char* name) {
    return Json{{"tokens", file.size()},
                {"documents", file.documents().size()},
                {"checksum", checksum_of(folder + "/" + name + ".tokens")}};
  };
  return Json{{"format", kFormat},
              {"version", kDatasetVersion},
              {"made_by", concat("cortado ", cortado::kVersion)},
              {"sources", options.files},
              {"tokenizer", options.tokenizer},
              {"vocabulary", facts.tokenizer->vocabulary()},
              {"characters", facts.characters},
              {"validation_share", options.validation},
              {"test_share", options.test},
              {"document_separator", options.document_separator},
              {"train", part(*written.train, "train")},
              {"validation", part(*written.validation, "validation")}};
}

// Checks that `out` is new, empty, or an earlier dataset, which will be replaced. Any other contents would be lost.
void check_output(const std::string& out) {
  fail_input_if(out.empty(), "[output] the name of the output folder is empty");
  if (!fs::exists(fs::symlink_status(out))) return;
  fail_input_if(!fs::is_directory(out), "[", out, "] cannot be made an output folder: a file of that name exists");
  fail_input_if(!is_writable_directory(out), "[", out, "] this output folder is not writable");
  static const std::set<std::string> kOurs{"train.tokens", "validation.tokens", "test.txt", "tokenizer",
                                           "dataset.json"};
  const bool is_dataset = fs::exists(out + "/dataset.json");
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    fail_input_if(!is_dataset || !kOurs.count(name), "[", out,
                  "] this output folder is in use: it has files that are not a dataset's (", name, "); name another");
  }
}

// An absolute path without links, "." or a trailing slash, as renaming needs it.
std::string resolved(const std::string& out) {
  const fs::path path = fs::weakly_canonical(fs::absolute(out));
  return (path.has_filename() ? path : path.parent_path()).string();
}

// Gives the folder the usual permissions: mkdtemp makes folders that only their owner can read.
void open_to_all(const std::string& folder) {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::chmod(folder.c_str(), 0777 & ~mask);
}

// Moves the finished folder to `out`, which is new, empty, or an earlier dataset.
void move_into_place(TemporaryDirectory& work, const std::string& out) {
  open_to_all(work.path());
  if (::rename(work.path().c_str(), out.c_str()) == 0) {  // also replaces an empty folder
    work.release();
  } else if (::renameat2(AT_FDCWD, work.path().c_str(), AT_FDCWD, out.c_str(), RENAME_EXCHANGE) != 0) {
    throw Failure(concat("[", out, "] cannot be replaced: ", std::strerror(errno)));
  }  // after the exchange, `work` holds the old dataset and removes it
  sync_directory(fs::path(out).parent_path().string());
}

}  // namespace

void prepare_dataset(const PrepareOptions& options) {
  check_options(options);
  const int64_t bytes = total_bytes(options.files);
  check_output(options.out);
  const std::string out = resolved(options.out);
  const std::string parent = fs::path(out).parent_path().string();
  claim_output_directory(parent, false);
  TemporaryDirectory work(parent, ".cortado-prepare-");
  const Survey facts = survey(options, nullptr, bytes);
  const Dataset written = write_tokens(options, facts, bytes, work.path());
  facts.tokenizer->save(work.path() + "/tokenizer");
  write_file(work.path() + "/dataset.json", describe(options, facts, work.path(), written).dump(2) + "\n");
  move_into_place(work, out);
}

Dataset open_dataset(const std::string& directory) {
  fail_input_if(!fs::is_directory(directory), "[", directory, "] is not a folder made by `cortado prepare`");
  const std::string path = directory + "/dataset.json";
  JsonReader reader(read_json_file(path), path);
  if (reader.text("format") != kFormat) reader.fail("is not a dataset of cortado");
  reader.integer("version", kDatasetVersion, kDatasetVersion);
  const int64_t vocabulary = reader.integer("vocabulary", 1, int64_t{1} << 31);
  Dataset dataset{TokenFile::open(directory + "/train.tokens"), TokenFile::open(directory + "/validation.tokens"),
                  load_tokenizer(directory + "/tokenizer")};
  for (const auto& [part, file] : {std::pair{"train", dataset.train}, std::pair{"validation", dataset.validation}}) {
    JsonReader sizes(reader.object(part), path + "." + part);
    const int64_t tokens = sizes.integer("tokens", 0, std::numeric_limits<int64_t>::max());
    fail_input_if(tokens != file->size() || file->vocabulary() != vocabulary, "[", directory, "/", part,
                  ".tokens] does not belong to ", path, ": ", file->size(), " tokens of a vocabulary of ",
                  file->vocabulary(), ", expected ", tokens, " of ", vocabulary);
    // Datasets of earlier versions have no checksum.
    const std::string checksum = sizes.text("checksum", "");
    fail_input_if(!checksum.empty() && checksum != checksum_of(directory + "/" + part + ".tokens"), "[", directory, "/",
                  part, ".tokens] is damaged: its checksum is not that of ", path);
  }
  fail_input_if(dataset.tokenizer->vocabulary() != vocabulary, "[", directory, "/tokenizer] does not belong to ", path,
                ": a vocabulary of ", dataset.tokenizer->vocabulary(), ", expected ", vocabulary);
  return dataset;
}

Dataset open_text_as_dataset(const PrepareOptions& options, const std::shared_ptr<Tokenizer>& tokenizer) {
  check_options(options);
  const int64_t bytes = total_bytes(options.files);
  const Survey facts = survey(options, tokenizer, bytes);
  if (bytes <= kInMemory) {
    MemoryTokens train(facts.tokenizer->vocabulary()), validation(facts.tokenizer->vocabulary());
    tokenize(options, facts, bytes, train, validation, [](std::string_view) {});
    return {train.finish(), validation.finish(), facts.tokenizer};
  }
  const TemporaryDirectory folder;  // the maps stay valid after the files are removed
  return write_tokens(options, facts, bytes, folder.path());
}

}  // namespace cortado
