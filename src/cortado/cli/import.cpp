// cortado import: makes a run from a pretrained model of another program.
#include "cortado/cli/common.h"
#include "cortado/cli/imported.h"

namespace cortado {
namespace {

struct ImportCommand {
  std::string source, out;
  std::optional<int64_t> context;
  std::optional<std::string> weights;
  std::shared_ptr<CommonOptions> common;
};

void run_import(const ImportCommand& command) {
  command.common->apply();
  std::optional<at::ScalarType> dtype;
  if (command.common->dtype) dtype = command.common->dtype_or(at::kFloat);
  const Imported imported =
      ModelImport(command.source, command.context).write(command.out, dtype, weight_format_or_plain(command.weights));
  std::cout << imported.summary() << "; written to " << command.out
            << (imported.tokenizer ? "" : "; it has no tokenizer, so it reads token numbers only") << std::endl;
  for (const std::string& line : imported.notices()) std::cout << line << std::endl;
}

}  // namespace

void add_import_command(CLI::App& app) {
  auto command = std::make_shared<ImportCommand>();
  auto& subcommand = *app.add_subcommand(
      "import",
      "Read a pretrained model (Llama and similar ones, Mamba, GLA, DeltaNet and others), and write it as a run");
  subcommand.footer(
      "PATH is the folder of a Hugging Face model (config.json and safetensors, also in shards) or a GGUF file\n"
      "(of several, the first) of Llama, Mistral, Qwen2, Qwen3, SmolLM3, Granite, Phi-3, Gemma 1 to 3, Mamba,\n"
      "Mamba-2, Granite 4, Bamba, Jamba, Qwen3-Next, Qwen3.5, Qwen3 with experts, LFM2, OLMo-2, OLMo-3, Falcon-H1 or\n"
      "Nemotron-H. Folders may also be of Seed-OSS and others (docs/models.md), or of flash-linear-attention's GLA,\n"
      "RetNet, DeltaNet, KDA and others. Weights keep their type; quantised ones become float32, unless --dtype names\n"
      "another type; with --weights int8 or int4 they are only for inference. The model's sampling defaults "
      "(generation_config.json, general.sampling.* of GGUF) are kept.\n"
      "Every command that opens a model also accepts PATH itself, and then imports the model into a cache folder\n"
      "(CORTADO_CACHE).\n\n"
      "Examples:\n"
      "  cortado import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2\n"
      "  cortado import Qwen3.5-0.8B.Q4_0.gguf --out runs/qwen --weights int4\n"
      "  cortado import models/Llama-3.2-1B --out runs/llama --dtype bfloat16");
  option(subcommand, "source", command->source, "a Hugging Face folder or a GGUF file", kRequired, kind("PATH"));
  subcommand.add_option("--out", command->out, "folder to write; new or empty")->required()->type_name("DIR");
  subcommand
      .add_option(
          "--context", command->context,
          "tokens that a text may have; chooses between the short and the long factors of a model with longrope "
          "(Phi-3). Default: the model's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("N");
  subcommand
      .add_option("--weights", command->weights,
                  "write the matrices in 8 or 4 bits, for inference only: the run is small and opens at once")
      ->check(CLI::IsMember(std::vector<std::string>{"int8", "int4"}));
  command->common = add_common_options(subcommand);
  subcommand.callback([command] { run_import(*command); });
}

}  // namespace cortado
