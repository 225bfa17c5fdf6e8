/*
 * A stand-in for ptxas: `ptxas OPTION... INPUT -o OUTPUT` writes the input as a cubin that the fake driver takes. With
 * PTXAS_STATUS it writes nothing, and ends with this status.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words) {
    if (getenv("PTXAS_STATUS")) return atoi(getenv("PTXAS_STATUS"));
    static char image[1 << 20] = "\177ELF\2\1\1";
    FILE *input = count > 3 ? fopen(words[count - 3], "r") : NULL, *output = NULL;
    size_t bytes = input ? 64 + fread(image + 64, 1, sizeof image - 65, input) : 64;
    memcpy(image + 32, &bytes, sizeof bytes);
    memcpy(image + 48, "FAKE", 4);
    if (bytes > 64) output = fopen(words[count - 1], "w");
    return !output || fwrite(image, 1, bytes, output) != bytes || fclose(output);
}
