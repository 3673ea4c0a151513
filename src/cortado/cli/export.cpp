// cortado export: a run's model as a Hugging Face folder.
#include <filesystem>

#include "cortado/cli/common.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/tokenizers/import.h"

namespace cortado {
namespace {

// Writes the tokenizer into the folder, or says why not.
std::string without_tokenizer(const ModelOptions& model, const std::string& folder) {
  if (!std::filesystem::exists(model.run + "/tokenizer")) return "the run has none";
  const auto tokenizer = model.tokenizer();
  try {
    return export_tokenizer(*tokenizer, folder) ? "" : "the run's is none of byte pairs";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto& command = *app.add_subcommand("export", "Write a softmax model as a Hugging Face folder");
  auto model = add_model_options(command);
  auto out = std::make_shared<std::string>();
  command.footer(
      "The folder gets config.json and model.safetensors (--dtype, by default float32) of a Llama, Mistral, Qwen2 or "
      "Gemma-2, which every\n"
      "layer's being softmax or sliding_window allows; and the tokenizer (tokenizer.json, tokenizer_config.json with a "
      "chat template,\n"
      "generation_config.json), where it is one of byte pairs, as those of imported models are.\n\nExamples:\n"
      "  cortado export runs/smollm2 --out models/smollm2 --dtype bfloat16");
  command.add_option("--out", *out, "folder to write; new or empty")->required()->type_name("DIR");
  command.callback([model, out] {
    const at::ScalarType dtype = model->common->dtype_or(at::kFloat);
    model->common->dtype = "float32";
    decoder_of(model->config());  // refuses before anything is read
    std::string lacking;
    write_output_folder(*out, [&](const std::string& folder) {
      lacking = without_tokenizer(*model, folder);
      export_hugging_face(*model->open(), folder, dtype);
    });
    std::cout << "written to " << *out << (lacking.empty() ? "" : "; without a tokenizer: ") << lacking << std::endl;
  });
}

}  // namespace cortado
