#include "cortado/base/error.h"
#include "cortado/serve/wire_parts.h"

namespace cortado {

namespace {

// The name of a schema has no effect here, but OpenAI's servers refuse other names.
void check_name(Body& body) {
  const std::string name = body.text("name");
  const bool good =
      !name.empty() && name.size() <= 64 &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string::npos;
  if (!good) body.fail("name", concat("must be 1 to 64 letters, digits, \"_\" and \"-\", got ", Json(name).dump()));
}

std::shared_ptr<const Grammar> grammar_of(Body& body, const std::string& key, const Json& schema, bool closed,
                                          const Engine& engine, size_t model) {
  const ServedModel& served = engine.models()[model];
  if (!Grammars::available()) {
    body.fail(key, "can only be \"text\": this build has no grammar library (XGrammar)");
  }
  if (!served.tokenizer) body.fail(key, concat("can only be \"text\": the model ", served.name, " has no tokenizer"));
  try {
    return engine.grammars().get(served.tokenizer, schema, closed);
  } catch (const InputError& error) {
    body.fail(key, concat("cannot be held to: ", error.what()));
  } catch (const Failure& error) {
    throw Busy(error.what());
  }
}

std::shared_ptr<const Grammar> of_schema(Body& body, const Engine& engine, size_t model) {
  check_name(body);
  body.text("description", "");
  const bool strict = body.boolean("strict", false);
  const Json& schema = body.any("schema");
  if (!schema.is_object()) body.fail("schema", "must be a JSON schema, an object");
  body.finish();
  return grammar_of(body, "schema", schema, strict, engine, model);
}

}  // namespace

std::shared_ptr<const Grammar> read_format(Body& outer, const std::string& key, bool nested, const Engine& engine,
                                           size_t model) {
  const Json& format = outer.any(key);
  if (format.is_null()) return nullptr;
  Body body(format, outer.place_of(key));
  const std::string type = body.text("type");
  if (type == "json_schema") {
    if (!nested) return of_schema(body, engine, model);
    const Json& inner = body.any("json_schema");
    body.finish();
    Body described(inner, body.place_of("json_schema"));
    return of_schema(described, engine, model);
  }
  if (type != "text" && type != "json_object") {
    body.fail("type", concat("can only be \"text\", \"json_object\" or \"json_schema\", got ", Json(type).dump()));
  }
  body.finish();
  if (type == "text") return nullptr;
  return grammar_of(body, "type", Json{{"type", "object"}}, false, engine, model);
}

}  // namespace cortado
