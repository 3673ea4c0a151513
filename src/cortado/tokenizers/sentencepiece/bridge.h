// The C interface of libcortado_sentencepiece.so, the only library that is linked to SentencePiece.
//
// It is a separate library, opened with dlopen, because libsentencepiece and torch's libc10 both export a variable
// called FLAGS_minloglevel, with 32 bytes in the first and 4 in the second. If one process links both, the dynamic
// linker unifies the two, and SentencePiece's constructor overwrites the memory behind libc10's variable. Protobuf, of
// which both carry a copy, could collide in the same way. With RTLD_DEEPBIND, SentencePiece finds its own symbols
// first. Only plain data crosses this interface, so neither side frees, throws or prints objects of the other.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Receives bytes during a call; they are valid only until it returns.
using CortadoSink = void (*)(void* context, const char* bytes, size_t count);
// Provides the next training sentence, valid until the next call. Returns false at the end. Must not throw.
using CortadoSentences = bool (*)(void* context, const char** text, size_t* count);

// The only exported function. Trains a byte-pair model with byte fallback and without normalisation. Returns true and
// passes the model to `result`, or false and passes the reason.
bool cortado_sentencepiece(CortadoSentences next, void* sentences, int32_t vocabulary, CortadoSink result,
                           void* context);
}

namespace cortado {

// Opens the library on first use, and keeps it open until the process ends. Failure if it is missing or unreadable.
// Safe to call from several threads.
decltype(&cortado_sentencepiece) sentencepiece_trainer();

}  // namespace cortado
