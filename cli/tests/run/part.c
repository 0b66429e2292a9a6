/* A library whose constructor makes a request. The program has the function. */
#include <unistd.h>

extern int request(void);

__attribute__((constructor)) static void start(void) {
    usleep(600000);
    request();
}
