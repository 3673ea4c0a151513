// cortado export: writes a run's model as a Hugging Face folder or a GGUF file.
#include <filesystem>

#include "cortado/base/signals.h"
#include "cortado/cli/common.h"
#include "cortado/cli/hub.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/pretrained/gguf_export.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/tokenizers/import.h"

namespace cortado {
namespace {

// Writes the tokenizer into the folder. Returns "", or the reason if it cannot be written.
std::string without_tokenizer(const ModelOptions& model, const std::string& folder) {
  if (!std::filesystem::exists(model.run + "/tokenizer")) return "the run has none";
  const auto tokenizer = model.tokenizer();
  try {
    return export_tokenizer(*tokenizer, folder) ? "" : "the run's has no byte pairs";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

namespace {

struct ExportOptions {
  std::shared_ptr<ModelOptions> model;
  std::string out, evaluation, gguf;
  std::optional<std::string> type;
  bool hub = false;
};

void export_softmax_model(const ExportOptions& options) {
  const ModelOptions& model = *options.model;
  const at::ScalarType dtype = model.common->dtype_or(at::kFloat);
  model.common->dtype = "float32";
  decoder_of(model.config());  // refuses before anything is read
  std::string lacking;
  write_output_folder(options.out, [&](const std::string& folder) {
    lacking = without_tokenizer(model, folder);
    export_hugging_face(*model.open_whole(), folder, dtype);
    write_generation_config(read_generation_config(model.run), folder);
  });
  std::cout << "written to " << options.out << (lacking.empty() ? "" : "; without a tokenizer: ") << lacking
            << std::endl;
}

void export_to_hub(const ExportOptions& options) {
  const ModelOptions& model = *options.model;
  const at::ScalarType dtype = model.common->dtype_or(at::kFloat);
  model.common->dtype = "float32";
  const auto opened = model.open_whole();
  write_output_folder(options.out, [&](const std::string& folder) {
    write_hub_folder(*opened, {.run = model.run, .evaluation = options.evaluation, .dtype = dtype}, folder);
  });
  std::cout << "written to " << options.out << ": config.json, model.safetensors, README.md"
            << (std::filesystem::exists(options.out + "/tokenizer") ? ", tokenizer" : "; the run has no tokenizer")
            << std::endl;
}

// The tokenizer's part of a GGUF file. Sets `lacking` to the reason if it has none.
GgufSettings tokenizer_of(const ModelOptions& model, int64_t rows, std::string& lacking) {
  lacking = "the run has none";
  if (!std::filesystem::exists(model.run + "/tokenizer")) return no_gguf_vocabulary();
  try {
    GgufSettings settings = gguf_vocabulary(*model.tokenizer(), rows);
    lacking.clear();
    return settings;
  } catch (const InputError& error) {
    lacking = error.what();
    return no_gguf_vocabulary();
  }
}

void export_to_gguf(const ExportOptions& options) {
  const ModelOptions& model = *options.model;
  const std::string type = options.type.value_or("f32");
  std::error_code ignored;
  fail_input_if(!writable_type(type), "[--type] \"", type, "\" is not written; choose one of ", writable_types());
  fail_input_if(model.common->dtype.has_value(), "[--dtype] is for folders; --type is the type of a GGUF file");
  fail_input_if(std::filesystem::exists(options.gguf, ignored), "[--gguf] ", options.gguf,
                " exists already; name a new file");
  check_output_file(options.gguf);
  gguf_model(model.config());  // refuses before anything is read
  catch_interrupts();
  std::string lacking;
  try {
    const auto opened = model.open_whole();
    const GgufSettings tokenizer = tokenizer_of(model, opened->config().vocabulary, lacking);
    export_gguf(*opened, {*writable_type(type), tokenizer}, options.gguf);
  } catch (const std::exception& failure) {
    exit_if_interrupted(failure);
    throw;
  }
  std::cout << "written to " << options.gguf << (lacking.empty() ? "" : "; without a tokenizer: ") << lacking
            << std::endl;
}

// Refuses options of one form with another.
void run_export(const ExportOptions& options) {
  const bool gguf = !options.gguf.empty();
  fail_input_if(gguf == !options.out.empty(), "[export] name what to write: --out DIR or --gguf FILE, one of the two");
  fail_input_if(gguf && options.hub, "[--to-hub-folder] writes a folder: give it with --out");
  fail_input_if(!options.evaluation.empty() && !options.hub, "[--evaluation] is for the README.md of --to-hub-folder");
  fail_input_if(options.type && !gguf, "[--type] is for --gguf; --dtype is the type of a folder's weights");
  options.model->find();
  gguf ? export_to_gguf(options) : options.hub ? export_to_hub(options) : export_softmax_model(options);
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto& command = *app.add_subcommand("export", "Write a model as a Hugging Face folder or a GGUF file");
  auto options = std::make_shared<ExportOptions>();
  options->model = add_model_options(command);
  command.footer(
      "--out writes config.json and model.safetensors (in --dtype, default float32) of a Llama, Mistral, Qwen2,\n"
      "Qwen3, SmolLM3, Granite, Seed-OSS or Gemma model. This requires that every layer is softmax or\n"
      "sliding_window. A byte-pair tokenizer, which imported models have, is written too: tokenizer.json,\n"
      "tokenizer_config.json with a chat template, generation_config.json. With --to-hub-folder any model can be\n"
      "written, in a form that transformers opens after `import cortado.transformers`, with a README.md for the\n"
      "hub: architecture, data, evaluation and memory.\n\n"
      "--gguf writes one file that llama.cpp opens, of one of these models, with its tokenizer. In blocks of 8\n"
      "or 4 bits, norms stay float32, and matrices whose rows are no multiple of 32 become float16.\n\n"
      "Examples:\n"
      "  cortado export runs/smollm2 --out models/smollm2 --dtype bfloat16\n"
      "  cortado export runs/smollm2 --gguf smollm2.gguf --type q8_0\n"
      "  cortado eval runs/linear --text held-out.txt --json > eval.json\n"
      "  cortado export runs/linear --to-hub-folder --evaluation eval.json --out models/linear");
  command.add_option("--out", options->out, "folder to write; new or empty")->type_name("DIR");
  command.add_option("--gguf", options->gguf, "GGUF file to write; new")->type_name("FILE");
  command
      .add_option("--type", options->type, "type of the GGUF file's matrices: " + writable_types() + ". Default: f32")
      ->type_name("TYPE");
  command.add_flag("--to-hub-folder", options->hub, "write a model of any mechanism, with a model card");
  command.add_option("--evaluation", options->evaluation, "for the model card: the output of `cortado eval --json`")
      ->type_name("FILE");
  command.callback([options] { run_export(*options); });
}

}  // namespace cortado
