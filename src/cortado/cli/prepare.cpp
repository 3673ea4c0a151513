// cortado prepare: makes memory-mapped token files from texts.
#include <memory>

#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/cli/common.h"
#include "cortado/data/token_file.h"

namespace cortado {
namespace {

constexpr const char* kExamples = R"(Examples:
  cortado prepare data/tinyshakespeare.txt --tokenizer char --out out/shakespeare
  cortado prepare books/*.txt --tokenizer sentencepiece:8000 --out out/books
  cortado prepare stories.txt --document-separator '<|endoftext|>' --tokenizer byte --out out/stories
  cortado prepare enwik8 --validation 0.05 --test 0.05 --out out/enwik8      90, 5 and 5 million bytes
Then: cortado train configs/nanogpt-cpu.json --data out/shakespeare --out runs/shakespeare)";

void print_summary(const std::string& directory) {
  const Dataset dataset = open_dataset(directory);
  Table table({"split", "tokens", "documents"});
  for (const auto& [name, file] : {std::pair{"train", dataset.train}, std::pair{"validation", dataset.validation}}) {
    table.add_row({name, with_commas(file->size()), with_commas(static_cast<int64_t>(file->documents().size()))});
  }
  std::cout << table.text() << dataset.tokenizer->kind() << " tokenizer, vocabulary "
            << with_commas(dataset.tokenizer->vocabulary()) << "; written to " << directory << std::endl;
}

// Replaces escapes, which shells do not interpret: separators are often blank lines.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    if (next == 'n' || next == 't' || next == '\\') {
      out += next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

void add_prepare_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("prepare", "Turn texts into token files for training");
  const auto options = std::make_shared<PrepareOptions>();
  const auto quiet = std::make_shared<bool>(false);
  option(*command, "files", options->files, "text files, UTF-8 (any bytes with the byte tokenizer), read in this order",
         kRequired, kind("FILE"));
  option(*command, "--tokenizer", options->tokenizer, "byte, char, or sentencepiece:N for N pieces", kShown,
         kind("SPEC"));
  option(*command, "--out", options->out, "folder to write; new, empty, or made by prepare before", kRequired,
         kind("DIR"));
  option(*command, "--validation", options->validation, "share of the text, at its end, that is kept for validation",
         kShown, kind("SHARE"));
  option(*command, "--test", options->test,
         "share of the text after that, written unchanged to DIR/test.txt, for `cortado eval --text`", kShown,
         kind("SHARE"));
  option(*command, "--document-separator", options->document_separator,
         "text between two documents of a file (\\n and \\t are understood); without it each file is one document",
         kind("TEXT"));
  command->add_flag("--quiet", *quiet, "show no progress bar");
  command->footer(kExamples);
  command->callback([options, quiet] {
    options->progress = !*quiet;
    options->document_separator = unescape(options->document_separator);
    catch_interrupts();  // Ctrl-C then leaves no half-written folder
    try {
      prepare_dataset(*options);
    } catch (const Failure& failure) {
      exit_if_interrupted(failure);
      throw;
    }
    print_summary(options->out);
  });
}

}  // namespace cortado
