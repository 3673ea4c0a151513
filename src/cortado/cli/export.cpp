// cortado export: writes a run's model as a Hugging Face folder.
#include <filesystem>

#include "cortado/cli/common.h"
#include "cortado/cli/hub.h"
#include "cortado/models/checkpoint.h"
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
  std::string out, evaluation;
  bool hub = false;
};

void export_softmax_model(const ExportOptions& options) {
  const ModelOptions& model = *options.model;
  const at::ScalarType dtype = model.common->dtype_or(at::kFloat);
  model.common->dtype = "float32";
  fail_input_if(!options.evaluation.empty(), "[--evaluation] is for the README.md of --to-hub-folder");
  decoder_of(model.config());  // refuses before anything is read
  std::string lacking;
  write_output_folder(options.out, [&](const std::string& folder) {
    lacking = without_tokenizer(model, folder);
    export_hugging_face(*model.open(), folder, dtype);
    write_generation_config(read_generation_config(model.run), folder);
  });
  std::cout << "written to " << options.out << (lacking.empty() ? "" : "; without a tokenizer: ") << lacking
            << std::endl;
}

void export_to_hub(const ExportOptions& options) {
  const ModelOptions& model = *options.model;
  const at::ScalarType dtype = model.common->dtype_or(at::kFloat);
  model.common->dtype = "float32";
  const auto opened = model.open();
  write_output_folder(options.out, [&](const std::string& folder) {
    write_hub_folder(*opened, {.run = model.run, .evaluation = options.evaluation, .dtype = dtype}, folder);
  });
  std::cout << "written to " << options.out << ": config.json, model.safetensors, README.md"
            << (std::filesystem::exists(options.out + "/tokenizer") ? ", tokenizer" : "; the run has no tokenizer")
            << std::endl;
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto& command = *app.add_subcommand("export", "Write a model as a Hugging Face folder");
  auto options = std::make_shared<ExportOptions>();
  options->model = add_model_options(command);
  command.footer(
      "Writes config.json and model.safetensors (in --dtype, default float32) of a Llama, Mistral, Qwen2, Qwen3,\n"
      "SmolLM3, Granite, Seed-OSS or Gemma model. This requires that every layer is softmax or sliding_window. A\n"
      "byte-pair tokenizer, which imported models have, is written too: tokenizer.json, tokenizer_config.json with\n"
      "a chat template, generation_config.json. With --to-hub-folder any model can be written, in a form that\n"
      "transformers opens after `import cortado.transformers`, with a README.md for the hub: architecture, data,\n"
      "evaluation and memory.\n\n"
      "Examples:\n"
      "  cortado export runs/smollm2 --out models/smollm2 --dtype bfloat16\n"
      "  cortado eval runs/linear --text held-out.txt --json > eval.json\n"
      "  cortado export runs/linear --to-hub-folder --evaluation eval.json --out models/linear");
  command.add_option("--out", options->out, "folder to write; new or empty")->required()->type_name("DIR");
  command.add_flag("--to-hub-folder", options->hub, "write a model of any mechanism, with a model card");
  command.add_option("--evaluation", options->evaluation, "for the model card: the output of `cortado eval --json`")
      ->type_name("FILE");
  command.callback([options] {
    options->model->find();
    options->hub ? export_to_hub(*options) : export_softmax_model(*options);
  });
}

}  // namespace cortado
