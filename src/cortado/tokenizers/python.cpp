// torch.classes.cortado.Tokenizer: tokenizers for Python, available once torch.classes.load_library has loaded
// libcortado.so.
#include <torch/custom_class.h>

#include "cortado/formats/safetensors.h"
#include "cortado/tokenizers/chat.h"
#include "cortado/tokenizers/import.h"

namespace cortado {
namespace {

// Opens a tokenizer folder (`kind` "native"), a Hugging Face folder ("huggingface") or a GGUF file ("gguf").
class PythonTokenizer : public torch::CustomClassHolder {
 public:
  PythonTokenizer(const std::string& source, const std::string& kind) {
    if (kind == "native") tokenizer_ = load_tokenizer(source);
    if (kind == "huggingface") tokenizer_ = import_tokenizer(source);
    if (kind == "gguf") tokenizer_ = pretrained_tokenizer(source);
    TORCH_CHECK(tokenizer_, "expected the kind native, huggingface or gguf, got ", kind);
  }

  std::vector<std::vector<int64_t>> encode(const std::vector<std::string>& texts) const {
    std::vector<std::vector<int64_t>> all;
    all.reserve(texts.size());
    for (const auto& text : texts) {
      const auto tokens = tokenizer_->encode(text);
      all.emplace_back(tokens.begin(), tokens.end());
    }
    return all;
  }
  std::vector<int64_t> encode_document(const std::string& text) const {
    const auto tokens = cortado::encode_document(*tokenizer_, text);
    return {tokens.begin(), tokens.end()};
  }

  // The text as a uint8 tensor: its bytes need not be UTF-8.
  at::Tensor decode(const std::vector<int64_t>& tokens, bool skip_special) const {
    std::vector<int32_t> ids;
    for (const int64_t token : tokens) {
      const auto id = static_cast<int32_t>(token);
      if (!skip_special || !tokenizer_->is_special(id)) ids.push_back(id);
    }
    return tensor_of_text(tokenizer_->decode(ids));
  }

  // `asked`: a JSON object with "messages", and as they are wanted "add_generation_prompt", "continue_final_message",
  // "tools", "documents" and "kwargs".
  std::string chat(const std::string& asked) const {
    const auto [messages, options] = conversation(asked);
    return Chat(*tokenizer_).render(messages, options).bytes();
  }
  // Its tokens. A mark in a message is text.
  std::vector<int64_t> encode_chat(const std::string& asked) const {
    const auto [messages, options] = conversation(asked);
    const Chat chat(*tokenizer_);
    const auto tokens = chat.encode(chat.render(messages, options)).tokens;
    return {tokens.begin(), tokens.end()};
  }
  // Renders a template. `asked` has "template", "given" and "written" (jinja.h). Returns "text" and "typed", or "error".
  static std::string render(const std::string& asked) {
    const Json json = parse_json(asked, "conversation");
    Json answer;
    try {
      const jinja::Template compiled(json.at("template").get<std::string>());
      const jinja::Text text = compiled.render(json.at("given"), json.at("written"), std::time(nullptr));
      answer = {{"text", text.bytes()}, {"typed", Json::array()}};
      for (const auto& [begin, end, source] : text.typed()) answer["typed"].push_back({begin, end, source});
    } catch (const jinja::Error& error) {
      answer["error"] = error.what();
    }
    return answer.dump();
  }
  // The chat template in Jinja; "" if the tokenizer has none.
  std::string chat_template() const { return tokenizer_->special().chat.text; }
  std::vector<int64_t> stops() const {
    return {tokenizer_->special().stops.begin(), tokenizer_->special().stops.end()};
  }
  c10::Dict<std::string, int64_t> special() const {
    const SpecialTokens& special = tokenizer_->special();
    c10::Dict<std::string, int64_t> all;
    all.insert("bos", special.begin);
    all.insert("eos", special.end);
    all.insert("unk", special.unknown);
    all.insert("pad", special.padding);
    return all;
  }
  std::vector<int64_t> prefix() const {
    return {tokenizer_->special().prefix.begin(), tokenizer_->special().prefix.end()};
  }
  int64_t vocabulary() const { return tokenizer_->vocabulary(); }
  void save(const std::string& directory) const { tokenizer_->save(directory); }
  // Writes the files that Hugging Face's libraries read; false if this is not a byte-pair tokenizer.
  bool export_to(const std::string& folder) const { return export_tokenizer(*tokenizer_, folder); }

 private:
  std::pair<Json, ChatOptions> conversation(const std::string& asked) const {
    Chat(*tokenizer_).need_template();
    const Json json = parse_json(asked, "conversation");
    return {json.at("messages"),
            {.ask = json.value("add_generation_prompt", true),
             .continues = json.value("continue_final_message", false),
             .tools = json.value("tools", Json()),
             .documents = json.value("documents", Json()),
             .more = json.value("kwargs", Json::object())}};
  }

  std::shared_ptr<Tokenizer> tokenizer_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.class_<PythonTokenizer>("Tokenizer")
      .def(torch::init<const std::string&, const std::string&>(), "",
           {torch::arg("source"), torch::arg("kind") = "native"})
      .def("encode", &PythonTokenizer::encode)
      .def("encode_document", &PythonTokenizer::encode_document)
      .def("decode", &PythonTokenizer::decode, "", {torch::arg("tokens"), torch::arg("skip_special") = false})
      .def("chat", &PythonTokenizer::chat)
      .def("encode_chat", &PythonTokenizer::encode_chat)
      .def_static("render", &PythonTokenizer::render)
      .def("chat_template", &PythonTokenizer::chat_template)
      .def("stops", &PythonTokenizer::stops)
      .def("special", &PythonTokenizer::special)
      .def("prefix", &PythonTokenizer::prefix)
      .def("vocabulary", &PythonTokenizer::vocabulary)
      .def("save", &PythonTokenizer::save)
      .def("export_to", &PythonTokenizer::export_to);
}

}  // namespace cortado
